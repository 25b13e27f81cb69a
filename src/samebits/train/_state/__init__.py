"""The state of a run in its commits, and its restoration."""
