"""Losses. The negative log-likelihood with targets t and weights w (1, if there are none), over the items i in row-major
order of the targets: terms -w[t[i]] x[i, t[i]] and weights w[t[i]], both 0 where t[i] is to be ignored; S of the terms, for
the mean divided by S of the weights (S: `reductions`), in float32 (float64 for float64), rounded once to the type of x.
"""
