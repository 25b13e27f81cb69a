"""Readers of a bound pipeline: in this process, or by workers ahead of it. The elements are the same."""
