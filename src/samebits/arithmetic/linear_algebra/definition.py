"""Triangular systems, Cholesky, LU and QR factorisations by one definition, in float64, on every CPU.

float32 is read as float64, and each result is rounded once at the end. Batches are matrices, each alone. A
matrix is cut into blocks of 64 rows and columns, from the first on; "the product" is that of
`arithmetic.product`. Every NaN is the one quiet NaN.

- L x = b, L lower triangular: for each block of rows, b less the product of the rows of L left of the block
  and the x that are known; then in the block x[i] = (b[i] - l[i, 0] x[0] - l[i, 1] x[1] ...) / l[i, i], each
  term by one fma, in this order. An upper triangular matrix is solved alike from the last row on (its last
  block begins at a multiple of 64 and may be short), a matrix on the right as the transposed system. A unit
  diagonal divides nothing.
- Cholesky, A = U^T U (the lower factor is U^T): for each block of rows of U, A less the product of what is
  above it; in its diagonal block each element takes its terms by fma, in order, and is divided by the
  diagonal element, which is a square root; what is right of it is solved from that block.
- LU with partial pivoting: for each block of columns, in each column the first element of the largest
  magnitude becomes the pivot, by an exchange of rows; those below are divided by it, and each element of the
  block that is below and to the right takes its term by fma. Then the rows right of the block are solved from
  it, and from the rest of the matrix the product of both is taken.
- QR: Householder's reflections H = I - tau v v^T, with the signs of LAPACK's `dlarfg`, in blocks of 64
  columns: T of (I - V T V^T) as in `dlarft` (forward, columnwise); sums along a column are those of
  `arithmetic.reductions`, and the rest of the matrix, and Q, take a block by three products. A float64 matrix
  is first multiplied by the power of two that brings its largest element to [1, 2), and R is brought back.
"""

BLOCK = 64
"""Rows and columns of a block, and reflections that are applied together."""
