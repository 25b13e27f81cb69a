"""Gradient clipping whose bits do not follow the number of processes. Imports: `determinism` and below."""

from samebits.nn.utils._clip_grad_norm import clip_grad_norm_ as clip_grad_norm_

__all__ = ["clip_grad_norm_"]
