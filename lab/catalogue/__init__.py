"""Calls of torch's ops, as cases with inputs that are always the same."""
