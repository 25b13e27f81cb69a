"""Runs a command in a view of a folder: nothing that it writes there reaches the folder itself.

Runs as a script of its own (standard library only), `python mounts.py FOLDER SNAPSHOT LAYER ALIAS
COMMAND...`: it enters a mount namespace, mounts an overlay over FOLDER, at FOLDER's own path, and becomes
COMMAND. What is read comes from LAYER, SNAPSHOT and FOLDER, the first that has it; what is written goes to
LAYER, where the next process of the same run finds it. ALIAS, where it is not empty, is an empty folder that
shows the same view under another path. The mounts end with the last process in the namespace, however it
ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
PATIENCE_S = 5.0
"""The time that the processes of a killed run, whose view holds the same layer, may take to end."""
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Executes the command in the view, in place of this process."""
    folder, snapshot, layer, alias, *command = sys.argv[1:]
    try:
        _enter_namespace()
        below = [(path, os.open(path, os.O_PATH)) for path in _mounts_below(folder)]
        _overlay(folder, [os.open(path, os.O_PATH) for path in (snapshot, folder)], os.path.join(layer, "0"))
        for number, (path, original) in enumerate(below, 1):
            _protect_mount(path, original, os.path.join(layer, str(number)))
        if alias:
            _mount(folder, alias, None, _BIND | _RECURSIVE)
        os.chdir(alias or folder)
    except OSError as error:
        sys.exit(f"samebits: no overlay of {folder}: {error.filename}: {error.strerror}")
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


def _enter_namespace() -> None:
    """Enters a mount namespace; without the right to one, in a user namespace with unchanged ids."""
    user, group = os.getuid(), os.getgid()
    try:
        _check_result(_libc.unshare(_NEWNS), "unshare")
    except PermissionError:
        _check_result(_libc.unshare(_NEWUSER | _NEWNS), "a user namespace")
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)  # else the overlay would be everybody's


def _write(name: str, text: str) -> None:
    handle = os.open(f"/proc/self/{name}", os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    finally:
        os.close(handle)


def _overlay(target: str, lower: list[int], layer: str) -> None:
    """Mounts an overlay of folders `lower` on `target`, by descriptors: a path may have any character."""
    for name in ("upper", "work"):
        os.makedirs(os.path.join(layer, name), exist_ok=True)
    upper, work = (os.open(os.path.join(layer, name), os.O_PATH) for name in ("upper", "work"))
    os.chmod(os.path.join(layer, "upper"), os.stat(f"/proc/self/fd/{lower[-1]}").st_mode & 0o7777)
    by = "/proc/self/fd/{}".format
    places = f"lowerdir={':'.join(map(by, lower))},upperdir={by(upper)},workdir={by(work)}"
    last = OSError(errno.EINVAL, "no options", target)
    for options in _options():
        try:
            return _mount_with_retries(target, f"{places},{options}")
        except OSError as error:
            last = error
    raise last


def _options() -> list[str]:
    """Returns mount options.

    Renaming a folder of the lower layer works for root only; a user namespace writes no trusted attributes.
    """
    with open("/proc/self/uid_map") as file:
        everybody = file.read().split() == ["0", "0", "4294967295"]
    return ["index=off,redirect_dir=on", "index=off"] if everybody else ["index=off,userxattr"]


def _mount_with_retries(target: str, options: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _mount("overlay", target, "overlay", 0, options)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _protect_mount(path: str, original: int, layer: str) -> None:
    """Gives a mount below the folder, not part of its overlay, its own overlay, or makes it read-only."""
    try:
        _overlay(path, [original], layer)
    except OSError:
        _mount(f"/proc/self/fd/{original}", path, None, _BIND)
        _mount("none", path, None, _BIND | _REMOUNT | _READ_ONLY)


def _mounts_below(folder: str) -> list[str]:
    """Returns the mount points below `folder`, outer ones first."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [line.split()[4].decode("unicode_escape").encode("latin-1") for line in file]
    found = {os.fsdecode(point) for point in points}
    return sorted(point for point in found if point.startswith(folder + "/"))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check_result(result, f"mount {target}")


def _check_result(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)


if __name__ == "__main__":
    main()
