"""Warnings that are shown once per subject, at the user's line, and kept for the record of the run."""

from __future__ import annotations

from collections.abc import Callable

from samebits._context import process
from samebits._inspect import user_code


def warn_once(subject: str, text: str | Callable[[], str], category: type[Warning]) -> None:
    """Shows `text` at the first call for a subject; Python's "once" depends on filters and call places.

    Args:
        subject: of the warning.
        text: or a function that returns it, called at the first call for this subject.
        category: of the warning.
    """
    if subject in process.notices:
        return
    process.notices[subject] = text = text if isinstance(text, str) else text()
    user_code.warn(text, category)


def notices() -> tuple[str, ...]:
    """Returns this process's warnings of op determinism: exceptions of the promise, which a record shows."""
    return tuple(process.notices.values())
