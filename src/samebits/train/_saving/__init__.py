"""The times and ways in which a run commits."""
