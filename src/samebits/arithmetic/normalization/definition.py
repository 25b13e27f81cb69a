"""Normalization, with S the sum of `reductions`, in float32 (float64 for float64); results are rounded once.

Layer and group normalization of a row of n numbers x: mean = S(x) / n, and
rstd = 1 / sqrt(S((x - mean)^2) / n + eps), where the lanes take the square by fma;
y = fma((x - mean) rstd, w, b). Their gradients, with h = (x - mean) rstd:

- layer: u = g w, dx = rstd fma(-h, S(u h) / n, u - S(u) / n), dw = S over rows of g h, db = S over rows of g.
- group: p and q of a channel are S(g h) and S(g); dx = rstd fma(-h, S(w p) / n, fma(g, w, -S(w q) / n)) with
  S over the channels of the group; dw = S over items of p, db of q.

Batch normalization has its sums in float64: mean = S(x) / n, var = S((x - mean)^2) / n, and istd = 1 /
sqrt(var + eps); then in float32 y = fma(x - mean, istd w, b). Gradients: db = S(g), t = S((x - mean) g), dw =
t istd, and in training dx = fma(-(x - mean), t istd^2 / n, g - db / n) (istd w), in evaluation dx = g (istd
w).
"""
