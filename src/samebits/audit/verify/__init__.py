"""`samebits verify`: the checks, their processes, the verdict."""
