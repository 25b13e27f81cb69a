"""A training step becomes one graph."""
