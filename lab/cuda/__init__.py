"""The definitions of `samebits.arithmetic` for CUDA: Triton kernels with the bits of the CPU's. No op uses them.

What leaves IEEE arithmetic on a GPU is closed thus:
contraction by `enable_fp_fusion=False` at each launch (Triton's compiler and ptxas then fuse nothing but `fma`), approximate
float32 division and square roots by `div_rn` and `sqrt_rn`, tensor cores by not using `tl.dot`; denormals are kept, since
nothing asks for `.ftz`. The payload of a NaN is not kept by a GPU, so results that are NaN become the one quiet NaN.
"""
