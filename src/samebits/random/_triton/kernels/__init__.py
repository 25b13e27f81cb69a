"""The kernels: Triton's language, typed by its compiler; `launch` calls them.

Without a GPU they run in Triton's interpreter, which computes with NumPy. What it does otherwise than a GPU, and what
keeps the two together:

- fma rounds the product too, and the cast to bfloat16 truncates: `arithmetic` has forms that are exact in both. A
  condition becomes bfloat16 by way of float32, since the interpreter takes its bits. There is no ~ of unsigned words.
- NumPy contracts no product and sum, and divides and takes roots as IEEE 754 says. A GPU does so with fp fusion off,
  `div_rn` and `sqrt_rn` (`elementary`): the interpreter cannot show it, the PTX and the machine code in the tests do.
- Minus is 0 - x in both, where the CPU's kernels flip the sign: `negated`. A comparison of numbers does not see it.
- Integers wrap in both. 64-bit places and launches of more programs than a test can interpret remain to the GPU.
- Python's floats stay what they are, where a launch makes them float32: the parameters are annotated as float64.
- It is given numbers as they are. A launch compiles anew for integers that 16 divides: wanted of `per_row`, which makes the
  stores of one key vectors, and refused of all others (`do_not_specialize`).
- It runs what the compiler refuses: a variable that changes its shape in a loop, `in`, code after a branch on a
  constant that returned. So every kernel is compiled ahead of time in a test, too.
"""
