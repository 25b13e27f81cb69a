"""Calls of a user's function, with random numbers of their own."""
