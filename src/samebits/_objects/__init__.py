"""Looking at a program's objects: parts, hashes, random generators, memory; bounded, without calling them."""
