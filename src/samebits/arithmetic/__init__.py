"""Definitions of results that name no vector, tile, thread or batch, and the kernels that follow them."""

BITS = 4
"""The version of the bits: it is raised when a definition changes, so that equal versions give equal bits.

The environment of each commit records it, and a run of another version is not resumed.
"""
