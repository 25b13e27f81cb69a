"""When a run commits, and by what way."""
