"""Fourier transforms. The definition of their bits is in `definition`."""
