"""What to say when the disk refuses a callback's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from samebits.checkpoint._disk_errors import CURES
from samebits.errors import RecordError


@contextmanager
def named_disk_errors(call: str) -> Iterator[None]:
    """Makes an OSError one line that names the callback and the cure."""
    try:
        yield
    except OSError as error:
        cure = CURES.get(error.errno or 0, "Remove the cause, or choose another path")
        raise RecordError(
            f"{call}: {os.strerror(error.errno) if error.errno else error} ({error.filename or 'writing'}). {cure} and "
            "run again: what the last commit knows of the file comes back."
        ) from error
