"""What is reachable from a training loop and its run: locals that live on, globals, and the user's own objects."""
