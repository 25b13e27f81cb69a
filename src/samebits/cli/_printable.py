"""Text for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns `text` without characters that control a terminal: names in a commit may be anything."""
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)
