"""The analysis of a captured step: the ranks that hold equal bits of each value, in every step of a run."""
