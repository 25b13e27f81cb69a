"""Looking at a program's objects: parts, hashes, random generators, memory; bounded, without calling them.

Read `walk.py` first. Doors: here and in pyproject.toml. Imports: `_inspect` and below.
"""
