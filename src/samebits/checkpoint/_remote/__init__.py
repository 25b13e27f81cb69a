"""Commits at an fsspec URL."""
