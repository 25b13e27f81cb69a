"""Triangular systems and factorisations. The definition of their bits is in `definition`."""

from samebits.arithmetic.linear_algebra.cholesky import cholesky_factor as cholesky_factor
from samebits.arithmetic.linear_algebra.householder import multiply as multiply
from samebits.arithmetic.linear_algebra.householder import orthogonal as orthogonal
from samebits.arithmetic.linear_algebra.householder import reflectors as reflectors
from samebits.arithmetic.linear_algebra.lu import lu_factor as lu_factor
from samebits.arithmetic.linear_algebra.lu import lu_solve as lu_solve
from samebits.arithmetic.linear_algebra.matrices import multiplied as multiplied
from samebits.arithmetic.linear_algebra.matrices import readable as readable
from samebits.arithmetic.linear_algebra.matrices import result as result
from samebits.arithmetic.linear_algebra.matrices import wide as wide
from samebits.arithmetic.linear_algebra.triangular import solve_triangular as solve_triangular
