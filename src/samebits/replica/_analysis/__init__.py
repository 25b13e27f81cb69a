"""The analysis of a captured step: the ranks on which each value holds the same bits, at every step of a run."""
