"""Softmax and log-softmax. The definition of the bits is in `definition`."""
