"""The generators and the seed of the process."""
