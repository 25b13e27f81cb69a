"""Commits for other programs, and weights from them."""
