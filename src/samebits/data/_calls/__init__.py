"""Calls of a user's function, each with its own random numbers."""
