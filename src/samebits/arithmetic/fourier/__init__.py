"""Fourier transforms. The definition of their bits is in `definition`."""

from samebits.arithmetic.fourier.transforms import complex_transform as complex_transform
from samebits.arithmetic.fourier.transforms import real_inverse as real_inverse
from samebits.arithmetic.fourier.transforms import real_transform as real_transform
