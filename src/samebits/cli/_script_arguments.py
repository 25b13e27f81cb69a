"""The split between our options and the script's: at SCRIPT, as with `python SCRIPT`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from samebits.cli._command_classes import HelpfulCommand
from samebits.cli._printable import printable
from samebits.errors import InvalidArgumentError

MEANT = "--"
"""Directly behind SCRIPT: what follows is the script's, even what looks like an option of ours."""


class OptionsThenScript(HelpfulCommand):
    """A command whose options come before SCRIPT; everything after it goes to the script untouched.

    Words behind SCRIPT that look like our options are warned of. `--` directly behind SCRIPT says that they
    are meant; it is not handed on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads our options, SCRIPT and the script's words."""
        rest = super().parse_args(ctx, args)
        words = list(ctx.params.get("args") or ())
        if words[:1] == [MEANT]:
            ctx.params["args"] = words[1:]
        elif not ctx.resilient_parsing:
            self._warn(words, str(ctx.params["script"]))
        return rest

    def _warn(self, words: Sequence[str], script: str) -> None:
        """Warns, in one line, of the words that have the name of an option of ours."""
        names = {name for option in self.params for name in option.opts if name.startswith("-")}
        found = list(dict.fromkeys(name for word in words if (name := word.partition("=")[0]) in names))
        if found:
            verb = "stands" if len(found) == 1 else "stand"
            text = (
                f"samebits: {self.name}: {', '.join(found)} {verb} after {script} and went to the script; "
                "options of samebits stand before it."
            )
            print(printable(text), file=sys.stderr)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Returns our options that complete a word; none behind SCRIPT: the shell completes files there."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


def check_script(script: str) -> None:
    """Checks SCRIPT before anything is started.

    Raises:
        InvalidArgumentError: it is a folder, or there is no such file.
    """
    if os.path.isdir(script):
        raise InvalidArgumentError(
            f"{script} is a folder. Name the script in it, such as {os.path.join(script, 'train.py')}."
        )
    if not os.path.isfile(script):
        raise InvalidArgumentError(f"there is no file {script}. Give the path of a Python script.")
