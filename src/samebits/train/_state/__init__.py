"""What a commit holds of a run, and how it is put back."""
