"""Commits behind an fsspec URL."""
