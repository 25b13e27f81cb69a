"""Our kernels, whose bits do not depend on the thread count."""
