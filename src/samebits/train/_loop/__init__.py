"""The loops of a run, and the batches that drive them."""
