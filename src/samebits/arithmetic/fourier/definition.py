"""The Fourier transform of n complex numbers, in their own type, by one definition, on every CPU.

Roots of unity w = exp(-2 pi i / n) are correctly rounded to float64, from integers (`roots`), then to the
type. A product of complex numbers is fma(a, c, -(b d)) + i fma(a, d, b c). The transform of n numbers x:

- By passes, where n < 256 and no prime factor is above 13. Radices r: 4 as often as it divides n, then 2, 3,
  5, 7, 11, 13. A pass makes of each x[p + m k] (k = 0, ..., r - 1; m = n / r) r sums, times w^(p k), but for
  the last pass; the next pass transforms sum k of all p, which are m numbers, in the same way. The sums of
  radix 2 and 4 are the usual butterflies. Those of an odd radix take s = x[j] + x[r - j] and d = x[j] - x[r -
  j] (0 < j < r / 2): sum 0 is x[0] + s + ...; with a = x[0] + cos(2 pi j k / r) s + ... and b = sin(2 pi j k
  / r) d + ..., each term by one fma, in the order of j, sum k is a - i b and sum r - k is a + i b.
- n >= 256 with such factors: n = a b, a the largest divisor up to the square root. The numbers that are b
  apart are transformed by passes of length a; result k of those from number j on is multiplied by w^(j k);
  those of each k are transformed by passes of length b.
- Other n, in float64, rounded once: Bluestein's convolution in a circle of the power of two from 2 n - 1 on.

The inverse is the same with real and imaginary parts exchanged before and after. The factor of the
normalization multiplies the results. n real numbers are n / 2 complex ones (`real`), for odd n n complex
ones; so are n real results. Of several dimensions the last that is named is transformed first; where the
results are real, last.
"""

SPLIT = 256
"""The length from which on a transform is made of two."""
RADICES = (4, 2, 3, 5, 7, 11, 13)
"""Lengths of the transforms that a pass makes, in their order."""
