"""`samebits help`: the same pages as `-h`."""

from __future__ import annotations

from typing import Annotated

import typer


def _commands(context: typer.Context) -> list[str]:
    """Returns the names that complete COMMAND in a shell."""
    return list(context.find_root().command.commands)  # type: ignore[attr-defined]


def help_of(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMAND", help="A command; without one: all of them.", autocompletion=_commands
        ),
    ] = None,
) -> None:
    """Show the help of samebits, or of one command.

    Exit status: 0; 2 where there is no such command.

    Examples:
        samebits help
        samebits help verify

    Read more: docs/start.md
    """
    program = context.parent
    assert program is not None
    if command is None:
        print(program.get_help())
        return
    found = program.command.get_command(program, command)  # type: ignore[attr-defined]
    with found.context_class(found, info_name=command, parent=program) as its_own:
        print(found.get_help(its_own))
