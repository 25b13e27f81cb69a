"""The stages of a pipeline, by what they do."""
