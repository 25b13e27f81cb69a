"""Collate functions, transforms and datasets of libraries that people use, in `samebits.data.DataLoader`."""
