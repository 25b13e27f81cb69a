"""The functions for float64 operands: sums of two float64 where one is not enough, rounded to one at the end."""
