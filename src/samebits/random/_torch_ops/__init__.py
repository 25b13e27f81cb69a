"""The stateless functions as ops of `torch.library`, for tracers and transforms of calls."""
