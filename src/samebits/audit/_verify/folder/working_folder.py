"""The user's working directory as each check sees it: what a script writes there leaves the user's own files alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from samebits.audit._verify.folder.guarded_links import Links
from samebits.audit._verify.folder.overlay import Overlay
from samebits.audit._verify.process_start import Start


class WorkingFolder(Protocol):
    """The folder as it was when the check began: what each run root sees, and changes for itself alone."""

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """How a process begins that sees the folder with the changes in `layer`."""
        ...

    def check(self) -> None:
        """Raises `WrittenError` when a process reached for what it shares with the user."""
        ...


@contextmanager
def working_folder(
    user: Path, scratch: Path, written: Collection[str], tell: Callable[[str], None]
) -> Iterator[WorkingFolder]:
    """An overlay of `user` where one can be mounted, else copies and guarded links; `tell` is told of the latter.

    `written` names files that the script is known to write, relative to `user`.

    Raises:
        VerifyError: there can be no overlay, and too much would have to be copied.

    """
    overlay, reason = None, ""
    try:
        overlay = Overlay.of(user, scratch)
    except OSError as error:
        reason = str(error)
    if overlay is not None:
        yield overlay
        return
    with Links.of(user, scratch, written, reason) as links:
        if links.linked:
            tell(f"{len(links.linked)} files of {user} are linked, not copied ({reason})")
        yield links
