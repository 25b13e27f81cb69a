"""The results of an analysis: text, listing, picture."""
