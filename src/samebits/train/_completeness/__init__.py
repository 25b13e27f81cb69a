"""The check that a commit holds all that a loop and its run reach: locals, globals, the user's objects."""
