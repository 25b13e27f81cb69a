"""The classes of our commands: their help pages, and what they refuse in the words of the command line."""

from __future__ import annotations

import difflib
from typing import Any

from typer.core import TyperCommand, TyperGroup

from samebits.cli import _help_pages as help_pages
from samebits.errors import InvalidArgumentError

HELP_OPTIONS = ["-h", "--help"]


class HelpfulCommand(TyperCommand):
    """A command whose help page is written from its docstring."""

    def get_help(self, ctx: Any) -> str:
        """Returns the page."""
        return help_pages.command_page(str(self.name), self.help or "", self.get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words of the command line; a word too many is an error with an example."""
        ctx.allow_extra_args = True  # else typer raises, in its own words
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            words = f"{len(rest)} word{'' if len(rest) == 1 else 's'} too many"
            example = help_pages.first_example(self.help or "")
            raise InvalidArgumentError(f"{words}: {' '.join(rest)}. Type for example: {example}")
        return rest


class CommandsInGroups(TyperGroup):
    """The program itself: a page of all commands, and the near name for one that there is not."""

    def get_help(self, ctx: Any) -> str:
        """Returns the page."""
        commands = [
            (name, command.help or "", getattr(command, "rich_help_panel", None))
            for name, command in self.commands.items()
        ]
        return help_pages.group_page(self.help or "", commands, self.get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command of that name.

        Raises:
            InvalidArgumentError: there is none.
        """
        found = super().get_command(ctx, cmd_name)
        if found is not None or ctx.resilient_parsing or cmd_name.startswith("-"):
            return found
        near = difflib.get_close_matches(cmd_name, self.commands)
        advice = (
            f"Did you mean {' or '.join(map(repr, near))}?" if near else "`samebits -h` lists all commands."
        )
        raise InvalidArgumentError(f"there is no command {cmd_name!r}. {advice}")
