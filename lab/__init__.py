"""The laboratory: reviews of ops that no user runs. It imports samebits, and nothing of samebits imports it."""
