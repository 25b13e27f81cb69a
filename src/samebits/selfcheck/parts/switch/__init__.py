"""The switch on CUDA."""
