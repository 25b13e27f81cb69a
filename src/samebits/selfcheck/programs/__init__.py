"""Training runs in separate processes, for parts that compare the bits of two processes."""
