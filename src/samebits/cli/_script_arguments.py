"""Where our options end and the script's begin: at SCRIPT, as with `python SCRIPT`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand


class OptionsThenScript(TyperCommand):
    """Options of ours stand before SCRIPT; everything behind it goes to the script untouched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}


def went_to_the_script(own: Iterable[Any], words: Sequence[str]) -> str:
    """A remark about the words behind SCRIPT that have the name of an option of ours; empty when there is none.

    Args:
        own: the parameters of our command.
        words: the script's arguments.
    """
    names = {name for option in own for name in option.opts if name.startswith("-")}
    found = dict.fromkeys(word.partition("=")[0] for word in words if word.partition("=")[0] in names)
    told = f" ({', '.join(found)} behind SCRIPT went to the script: options of samebits stand before it)"
    return told if found else ""
