"""The current folder under an overlay: the script finds everything at its own path, and its writes are stored elsewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from samebits.audit._verify.folder import mounts
from samebits.audit._verify.folder.folder_contents import copy_sources, mirror_neighbours, script_path_in_copy
from samebits.audit._verify.process_start import Start

_PROBE = """
import os
os.remove(".samebits-probe/file")
os.rmdir(".samebits-probe")
os.mkdir(".samebits-probe")
assert os.listdir(".samebits-probe") == []
"""
"""An overlay whose upper file system keeps no attributes shows removed files again."""


@dataclass(frozen=True)
class Overlay:
    """The user's folder, with its programs as they were when the check began (`snapshot`)."""

    user: Path
    snapshot: Path

    @classmethod
    def of(cls, user: Path, scratch: Path) -> Overlay:
        """Takes the snapshot. Raises `OSError` with the reason where no overlay of `user` can be mounted."""
        _try(user, scratch / "probe")
        copy_sources(user, scratch / "snapshot")
        return cls(user, scratch / "snapshot")

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """Returns the start of a process that writes to `layer`, which is made; `moved`: the script runs under another path."""
        layer.mkdir(exist_ok=True)
        alias = mirror_neighbours(self.user, layer / "moved") if moved else None
        if alias is not None:
            alias.mkdir(exist_ok=True)
            script = script_path_in_copy(self.user, alias, script)
        return Start(_words(self.user, self.snapshot, layer, alias), alias or self.user, script)

    def check(self) -> None:
        """Does nothing: no process can have written to the user's folder."""


def _words(user: Path, snapshot: Path, layer: Path, alias: Path | None = None) -> tuple[str, ...]:
    places = map(str, (user, snapshot, layer, alias or ""))
    return (sys.executable, "-I", "-S", mounts.__file__, *places)


def _try(user: Path, scratch: Path) -> None:
    """Mounts one and uses it: only this shows that it is allowed and works."""
    (scratch / "lower" / ".samebits-probe").mkdir(parents=True)
    (scratch / "lower" / ".samebits-probe" / "file").touch()
    words = _words(user, scratch / "lower", scratch / "layer")
    done = subprocess.run(
        [*words, sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(done.stderr.strip().rpartition("\n")[2].removeprefix("samebits: "))
