"""Definitions of results that name no vector, tile, thread or batch, and the kernels that follow them.

Read `README.md` first. Doors: here and in pyproject.toml. Imports: `_native` and below.
"""

BITS = 4
"""The version of the bits: it is raised when a definition changes, so that equal versions give equal bits.

The environment of each commit records it, and a run of another version is not resumed.
"""
