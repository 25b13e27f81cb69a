"""Reductions. The definition of a sum S(x) of the numbers x[0], ..., x[n - 1]:

- n <= 256, a block: 16 lanes. Lane j begins at +0 and adds x[j], x[j + 16], x[j + 32], ... in this order. The
  upper half of the lanes is added to the lower half (lane j + 8 to lane j, then 4, 2, 1) until one is left.
- n > 256: S of the sums of the blocks x[0:256], x[256:512], ...

All additions are in float32, for float64 input in float64; bfloat16 and float16 are read as float32. The
result is rounded once to its type. The elements of several dimensions are numbered in row-major order of
these dimensions, whatever the strides. Lanes without elements add +0, which changes nothing, since a lane is
never -0. Of another reduction ("what") the lanes take another step for an element: see `steps`.
"""

BLOCK = 256
"""Elements of a block."""
