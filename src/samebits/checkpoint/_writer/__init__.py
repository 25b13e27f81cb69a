"""The write path of a commit: standard library and xxhash only, so that a process of its own starts in 20 ms.

Imported as `samebits.checkpoint._writer` where a run commits itself, and as `writer` in the process that `main` runs in:
one code, so the same bytes.
"""
