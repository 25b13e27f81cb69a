"""Definitions of results that name no vector, tile, thread or batch, and the kernels that follow them."""
