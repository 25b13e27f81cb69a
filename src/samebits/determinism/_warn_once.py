"""Warnings that are shown once per subject, at the user's line, and kept for the record of the run."""

from __future__ import annotations

from samebits._inspect import user_code

_shown: dict[str, str] = {}
"""Subject to text. Process-wide: a run's record names events from before it was opened, too."""


def warn_once(subject: str, text: str, category: type[Warning]) -> None:
    """Shows `text` at the first call for this subject; Python's own "once" depends on filters and call places."""
    if subject in _shown:
        return
    _shown[subject] = text
    user_code.warn(text, category)


def notices() -> tuple[str, ...]:
    """Returns the warnings of op determinism in this process: the exceptions of the promise. A record shows them."""
    return tuple(_shown.values())
