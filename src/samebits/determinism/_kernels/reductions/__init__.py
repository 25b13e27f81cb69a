"""Sums, products, norms and variances down to one element, whose bits do not depend on the thread count.

Torch gives each thread a part of the elements and adds up the threads' results: one sum for each thread count. (With
two results or more it gives each thread whole results, and those are equal.) Here blocks of a fixed size are reduced
by a kernel on torch's own threads, and the blocks' results in their order.
"""

from samebits.determinism._kernels.reductions import moments, norms, products, sums

REPLACEMENTS = (*moments.REPLACEMENTS, *norms.REPLACEMENTS, *products.REPLACEMENTS, *sums.REPLACEMENTS)
