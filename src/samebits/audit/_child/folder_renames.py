"""Renames of folders under an overlay without redirects, which refuses them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def rename_folders_by_copy() -> Iterator[None]:
    """Makes `os.rename` and `os.replace` copy and remove a folder where the kernel raises "cross-device link" falsely.

    An overlay that an ordinary user mounts cannot rename a folder of the lower layer (kernel documentation,
    filesystems/overlayfs, "redirect_dir"); the user's own folder can. Between true devices it stays an error.
    """
    rename, replace = os.rename, os.replace
    os.rename, os.replace = _copy_on_exdev(rename), _copy_on_exdev(replace)
    try:
        yield
    finally:
        os.rename, os.replace = rename, replace


def _copy_on_exdev(call: Callable[..., None]) -> Callable[..., None]:
    def renamed(src: Any, dst: Any, **folders: Any) -> None:
        try:
            call(src, dst, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not _one_device(src, dst):
                raise
            _move(src, dst)

    return renamed


def _move(src: Any, dst: Any) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(dst)  # an empty folder is replaced, another one is an error
    shutil.copytree(src, dst, symlinks=True)
    shutil.rmtree(src)


def _one_device(src: Any, dst: Any) -> bool:
    if os.path.islink(src) or not os.path.isdir(src):
        return False
    return os.stat(src).st_dev == os.stat(os.path.dirname(os.path.abspath(dst))).st_dev
