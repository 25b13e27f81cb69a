"""Softmax and log-softmax. The definition of the bits is in `definition`."""

from samebits.arithmetic.softmax.tensors import attention_weights as attention_weights
from samebits.arithmetic.softmax.tensors import softmax as softmax
from samebits.arithmetic.softmax.tensors import softmax_gradient as softmax_gradient
