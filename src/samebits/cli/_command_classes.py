"""The classes of our commands: their help pages, and what they refuse in the words of the command line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from samebits.cli import _help_pages as help_pages
from samebits.cli._error_messages import printable
from samebits.errors import InvalidArgumentError

HELP_OPTIONS = ["-h", "--help"]
MEANT = "--"
"""Directly behind SCRIPT: what follows is the script's, even what looks like an option of ours."""


class HelpfulCommand(TyperCommand):
    """A command whose help page is written from its docstring."""

    def get_help(self, ctx: Any) -> str:
        return help_pages.command_page(str(self.name), self.help or "", self.get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words of the command line; a word too many is an error with an example."""
        ctx.allow_extra_args = True  # else typer raises, in its own words
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            words = f"{len(rest)} word{'' if len(rest) == 1 else 's'} too many"
            example = help_pages.first_example(self.help or "")
            raise InvalidArgumentError(f"{words}: {' '.join(rest)}. Type for example: {example}")
        self.after_parsing(ctx)
        return rest

    def after_parsing(self, ctx: Any) -> None:
        """Called with the values of the arguments in `ctx.params`."""


class OptionsThenScript(HelpfulCommand):
    """A command whose options come before SCRIPT; everything after it goes to the script untouched.

    Words behind SCRIPT that look like our options are warned of. `--` directly behind SCRIPT says that they
    are meant; it is not handed on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}

    def after_parsing(self, ctx: Any) -> None:
        """Takes the `--` out of the script's words, or warns of those that look like ours."""
        words = list(ctx.params.get("args") or ())
        if words[:1] == [MEANT]:
            ctx.params["args"] = words[1:]
        elif not ctx.resilient_parsing:
            self._warn(words, str(ctx.params["script"]))

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


class CommandsInGroups(TyperGroup):
    """The program itself: a page of all commands, and the near name for one that there is not."""

    def get_help(self, ctx: Any) -> str:
        commands = [
            (name, command.help or "", getattr(command, "rich_help_panel", None))
            for name, command in self.commands.items()
        ]
        return help_pages.group_page(self.help or "", commands, self.get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command of that name. Raises InvalidArgumentError without one."""
        found = super().get_command(ctx, cmd_name)
        if found is not None or ctx.resilient_parsing or cmd_name.startswith("-"):
            return found
        near = difflib.get_close_matches(cmd_name, self.commands)
        meant = f"Did you mean {' or '.join(map(repr, near))}?"
        advice = meant if near else "`samebits -h` lists all commands."
        raise InvalidArgumentError(f"there is no command {cmd_name!r}. {advice}")
