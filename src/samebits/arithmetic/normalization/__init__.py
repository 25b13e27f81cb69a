"""Normalization. The definition of the bits is in `definition`."""
