"""Programs of the kind users write, each a few steps, and a driver that says which run across machines."""
