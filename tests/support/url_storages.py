"""Storages for run directories at URLs: one whose connection breaks, one whose process dies; and what lies at a URL."""

import os
import signal
import threading

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from samebits.checkpoint import list_commits
from samebits.checkpoint._reading import newest_valid
from samebits.checkpoint._store import commit_folders
from store_commits import write_commit

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}


def counted(kind):
    """Calls `kind.count()` before each call that reaches the storage."""
    for name in ("ls", "info", "_open", "rm_file"):

        def call(self, *args, original=getattr(kind, name), **kwargs):
            kind.count()
            return original(self, *args, **kwargs)

        setattr(kind, name, call)
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    return kind


@counted
class UnreliableFileSystem(MemoryFileSystem):
    """Memory behind a connection that breaks after `left` calls, and waits at `gate`."""

    protocol = "unreliable"
    store, pseudo_dirs = {}, [""]
    left = None
    gate = threading.Event()

    @classmethod
    def count(cls):
        cls.gate.wait()
        if cls.left is not None:
            cls.left -= 1
            if cls.left < 0:
                raise ConnectionResetError("connection reset by peer")

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("unreliable://"))


@counted
class DyingFileSystem(LocalFileSystem):
    """A disk whose process is killed after `left` calls."""

    protocol = "dying"
    left = None

    @classmethod
    def count(cls):
        if cls.left is not None:
            cls.left -= 1
            if cls.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("dying://"))


def reset():
    for kind in (MemoryFileSystem, UnreliableFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    UnreliableFileSystem.left = DyingFileSystem.left = None
    UnreliableFileSystem.gate.set()


def break_connection(left):
    """The connection breaks after `left` more calls; None: it is back."""
    UnreliableFileSystem.left = left


def files(url):
    system, root = fsspec.core.url_to_fs(url)
    return sorted(str(name)[len(root) + 1 :] for name in system.find(root))


def put(url, name, data):
    system, root = fsspec.core.url_to_fs(url)
    system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
    with system.open(f"{root}/{name}", "wb") as file:
        file.write(data)


def get(url, name):
    system, root = fsspec.core.url_to_fs(url)
    return system.cat_file(f"{root}/{name}")


def names(url):
    return [(listed.step, listed.status) for listed in list_commits(url, verify=True)]


def steps(url):
    return [listed.step for listed in list_commits(url)]


def newest(url):
    """Step and state of the newest valid commit at the URL itself; the number of those that are not."""
    found, skipped = newest_valid(commit_folders(url))
    return (None if found is None else found[1].step), found and found[2], len(skipped)


def state_at(step):
    return {
        "w": torch.arange(300.0) + step,
        "n": torch.tensor(step),
        "c": torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last),
    }


def commit(store, step, **facts):
    return write_commit(store, step, state_at(step), **{**FACTS, **facts})
