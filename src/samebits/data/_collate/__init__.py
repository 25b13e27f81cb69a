"""Collate functions: elements become batches."""
