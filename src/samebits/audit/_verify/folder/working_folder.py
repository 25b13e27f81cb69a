"""The user's working directory as each check sees it: the script's writes do not reach the user's files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from samebits.audit._verify.folder.copies_and_links import Links
from samebits.audit._verify.folder.overlay import Overlay
from samebits.audit._verify.process_start import Start


class WorkingFolder(Protocol):
    """The folder when the check began: each run root sees it, and changes it for itself alone."""

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """Returns the start of a process that sees the folder with the changes in `layer`."""
        ...

    def check(self) -> None:
        """Raises `WrittenError` when a process opened a file for writing that it shares with the user."""
        ...


@contextmanager
def working_folder(
    user: Path, scratch: Path, written: Collection[str], notify: Callable[[str], None]
) -> Iterator[WorkingFolder]:
    """Makes an overlay of `user` where one can be mounted, else copies and guarded links; `notify` is called with a
    text then.

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
            notify(f"{len(links.linked)} files of {user} are linked, not copied ({reason})")
        yield links
