"""Commits that a test makes itself, without a run."""

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(name="tmp_path")
def in_memory(tmp_path):
    """In memory where there is such a folder: hundreds of commits need no real fsync here."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def write_commit(store, step, state, on_tensors_written=None, **facts):
    """Makes `state` durable as the commit of `step` in an open `CommitStore`; returns its manifest."""
    return store.write(store.prepare(state, step=step, **facts), on_tensors_written)
