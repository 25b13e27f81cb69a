"""The product of matrices by one definition, on every CPU, over any number of threads, in any batch.

    product[i, j] = c_0 + c_1 + ... : the inner dimension in chunks of 256; their sums are added in order.
    c = fma(a[i, k], b[k, j], c) for each k of the chunk in order, from +0.

fma rounds once, and so does each addition, to nearest even; denormals are kept. The definition names no
vector, tile, thread or batch, so these are free. With `alpha`, `beta` and `self`: t = alpha * product, then t
+ (beta * self); a factor of 1 is no operation, and with beta = 0 `self` is not read. Every NaN is the one
quiet NaN with no sign. float64 is the same in its own arithmetic.

float16 is read as float32, all is float32, and the result is rounded once; with `self`, t is rounded, too, so
that `linear` gives the same bits whether torch makes it of one op or of a product and a sum, which follows
the layout of a batch. bfloat16 too, and there the chain takes two elements at a time, the odd one first:
c = fma(a[i, 2p + 1], b[2p + 1, j], c), then c = fma(a[i, 2p], b[2p, j], c); an odd inner dimension has one
more element, of zeros. Denormals are flushed to zero, as factors and as results. So the instruction VDPBF16PS
computes it.
"""

CHUNK = 256
"""Elements of the inner dimension whose chain is one chunk of the sum."""
