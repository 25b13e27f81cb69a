"""The kernels: Triton's language, typed by its compiler; `launch` calls them."""
