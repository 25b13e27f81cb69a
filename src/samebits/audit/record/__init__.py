"""What a training step is made of, seen from outside and written down as digests."""
