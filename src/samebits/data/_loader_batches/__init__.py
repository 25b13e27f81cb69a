"""The batches of a `DataLoader`."""
