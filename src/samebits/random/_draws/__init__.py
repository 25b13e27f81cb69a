"""Random tensors that are a function of a key."""
