"""Reads and writes through indices, and histograms."""
