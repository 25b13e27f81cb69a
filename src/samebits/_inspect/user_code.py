"""Which code is the user's, which a library's, which samebits' own."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

from samebits import digest

_WALKED = ("samebits.callbacks", "samebits.train.trainer")
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep for path in {*sysconfig.get_paths().values()} if path
)  # the standard library, site-packages, the interpreter's scripts
_SAMEBITS = os.path.dirname(os.path.realpath(digest.__file__)) + os.sep


@functools.lru_cache(maxsize=4096)
def is_foreign(filename: str) -> bool:
    """Whether code of this file is neither the user's nor samebits'."""
    if filename.startswith("<"):
        return filename.startswith("<frozen")
    path = os.path.realpath(filename)
    return path.startswith(_LIBRARIES) and not path.startswith(_SAMEBITS)


def is_samebits(filename: str) -> bool:
    """Whether code of this file is samebits' own."""
    return os.path.realpath(filename).startswith(_SAMEBITS)


@functools.lru_cache(maxsize=4096)
def is_users(kind: type) -> bool:
    """Whether instances of `kind` are the user's own objects, or samebits' holders of them."""
    if kind.__module__ == "__main__" or kind.__module__.startswith(_WALKED):
        return True
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is not None and not is_foreign(file) and not is_samebits(file)
