"""CPU kernels of random numbers."""
