"""The capture of a training step as one graph."""
