"""Text for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` without signs that steer a terminal: names in a commit are whatever somebody wrote there."""
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)
