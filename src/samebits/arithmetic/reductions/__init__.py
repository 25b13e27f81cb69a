"""Reductions. The definition of the bits is in `definition`."""

from samebits.arithmetic.reductions.kernels import PLAIN as PLAIN
from samebits.arithmetic.reductions.kernels import QUOTIENT as QUOTIENT
from samebits.arithmetic.reductions.kernels import ROOT as ROOT
from samebits.arithmetic.reductions.kernels import ROOT_OF_QUOTIENT as ROOT_OF_QUOTIENT
from samebits.arithmetic.reductions.scans import logcumsumexp as logcumsumexp
from samebits.arithmetic.reductions.tensors import MEMORY as MEMORY
from samebits.arithmetic.reductions.tensors import lanes_type as lanes_type
from samebits.arithmetic.reductions.tensors import reduce as reduce
