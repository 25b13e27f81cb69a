"""samebits."""
