"""Stochastic rounding on CUDA, with the bits of the CPU kernels. Importing this package imports no Triton."""
