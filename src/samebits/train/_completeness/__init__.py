"""The check that a commit holds all the state reachable from a training loop and its run: live locals,
globals, and the user's objects.
"""
