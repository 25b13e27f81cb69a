"""Asynchronous commits: a process of their own makes them durable while the run continues."""
