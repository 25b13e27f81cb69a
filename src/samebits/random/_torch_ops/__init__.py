"""The stateless functions as ops of `torch.library`, for whatever records or transforms calls instead of making them."""
