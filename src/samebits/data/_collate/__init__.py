"""Elements become batches."""
