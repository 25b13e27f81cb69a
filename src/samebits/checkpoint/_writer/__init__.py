"""The writer process of a run's commits, and the run's side of it.

`commit_folder` and `writer_process` import the standard library and xxhash only, so that the process starts
in 20 ms. A run that commits itself uses `commit_folder`, too: one code, so the same bytes.
"""
