"""The answers of an analysis: text, listing, picture."""
