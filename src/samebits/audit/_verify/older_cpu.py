"""Settings with which the libraries of a process play an older CPU."""

AVX2_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL",
    "NUMBA_CPU_FEATURES": "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sahf,+sse,"
    "+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    "NUMBA_CPU_NAME": "haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
"""Environment variables with which the libraries of a process play a CPU of 2013: vectors of 256 bits, no matrix instructions."""
