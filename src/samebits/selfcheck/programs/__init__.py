"""Training runs in processes of their own, for parts that ask whether another process ends with the same bits."""
