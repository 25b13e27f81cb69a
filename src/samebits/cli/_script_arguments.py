"""The split between our options and the script's: at SCRIPT, as with `python SCRIPT`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand


class OptionsThenScript(TyperCommand):
    """A command whose options come before SCRIPT; everything after it goes to the script untouched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}


def misplaced_options(parameters: Iterable[Any], words: Sequence[str]) -> str:
    """Returns a remark about the words after SCRIPT that have the name of an option of ours; empty when there is none.

    Args:
        parameters: those of our command.
        words: the script's arguments.
    """
    names = {name for option in parameters for name in option.opts if name.startswith("-")}
    found = dict.fromkeys(word.partition("=")[0] for word in words if word.partition("=")[0] in names)
    remark = f" ({', '.join(found)} after SCRIPT went to the script: options of samebits come before it)"
    return remark if found else ""
