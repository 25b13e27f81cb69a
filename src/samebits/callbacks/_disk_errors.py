"""Messages for files of callbacks that the disk refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from samebits.checkpoint._run_directory import CURES
from samebits.errors import RecordError


@contextmanager
def translate_disk_errors(call: str) -> Iterator[None]:
    """Turns an OSError into one line that names the callback and the cure."""
    try:
        yield
    except OSError as error:
        cure = CURES.get(error.errno or 0, "Remove the cause, or choose another path")
        raise RecordError(
            f"{call}: {os.strerror(error.errno) if error.errno else error} ({error.filename or 'writing'}). {cure} and "
            "run again: the rest of the file is restored from the last commit."
        ) from error
