"""The loops of a run, and their batches."""
