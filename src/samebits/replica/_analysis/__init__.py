"""The analysis of a captured step: who holds the same bits, at every step of a run."""
