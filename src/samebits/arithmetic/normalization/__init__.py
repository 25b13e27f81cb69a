"""Normalization. The definition of the bits is in `definition`."""

from samebits.arithmetic.normalization.groups import group_gradients as group_gradients
from samebits.arithmetic.normalization.groups import normalized_groups as normalized_groups
from samebits.arithmetic.normalization.layers import as_read as as_read
from samebits.arithmetic.normalization.layers import input_gradient as input_gradient
from samebits.arithmetic.normalization.layers import normalized_rows as normalized_rows
from samebits.arithmetic.normalization.layers import weight_gradients as weight_gradients
