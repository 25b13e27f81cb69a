"""Definitions of results that name no vector width, tile, thread or batch, and the kernels that follow them."""
