"""The command line: its subcommands, and one line instead of a traceback for every error made on purpose."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import samebits
from samebits.cli._command_classes import HELP_OPTIONS, CommandsInGroups, HelpfulCommand, OptionsThenScript
from samebits.cli._commands.commits_command import commits
from samebits.cli._commands.diff_command import diff
from samebits.cli._commands.env_command import env
from samebits.cli._commands.ops_command import ops
from samebits.cli._commands.replica_command import replica
from samebits.cli._commands.run_command import run
from samebits.cli._commands.verify_command import verify
from samebits.cli._error_messages import UsageError, printable, sentence_of
from samebits.cli._help_pages import PROGRAM
from samebits.errors import SamebitsError

INTERRUPTED = 130

app = typer.Typer(
    cls=CommandsInGroups,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS},
)


def _names(context: typer.Context) -> list[str]:
    return list(context.find_root().command.commands)  # type: ignore[attr-defined]


def help_of(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="A command; without one: all of them.", autocompletion=_names),
    ] = None,
) -> None:
    """Show the help of samebits, or of one command.

    Exit status: 0; 2 where there is no such command.

    Examples:
        samebits help
        samebits help verify

    Read more: docs/start/prove.md
    """
    program = context.parent
    assert program is not None
    if command is None:
        print(program.get_help())
        return
    found = program.command.get_command(program, command)  # type: ignore[attr-defined]
    with found.context_class(found, info_name=command, parent=program) as its_own:
        print(found.get_help(its_own))


CHECK, LOOK_AT, LOOK_UP = "Check a script", "Look at a run", "Look something up"
app.command(cls=OptionsThenScript, rich_help_panel=CHECK)(verify)
app.command(cls=OptionsThenScript, rich_help_panel=CHECK)(run)
app.command(cls=HelpfulCommand, rich_help_panel=CHECK)(diff)
app.command(cls=HelpfulCommand, rich_help_panel=LOOK_AT)(commits)
app.command(cls=HelpfulCommand, rich_help_panel=LOOK_UP)(ops)
app.command(cls=HelpfulCommand, rich_help_panel=LOOK_UP)(env)
app.command(cls=HelpfulCommand, rich_help_panel=LOOK_UP, name="help")(help_of)
app.command(cls=HelpfulCommand, rich_help_panel="Several processes")(replica)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"samebits {samebits.__version__}")
        raise typer.Exit


@app.callback()
def _samebits(
    *,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Bit-for-bit reproducible, pre-emptible training for PyTorch, with the proof.

    Exit status: 0 equal, whole or as promised; 1 not; 2 could not be checked, with one line that says why.
    `run` has the exit status of the script (75: stopped by a signal; start it again and it resumes).

    Examples:
        samebits verify --run train.py          Does my script repeat, bit for bit?
        samebits run --record a train.py        Run it, and record a digest of every step.

    Read more: docs/start/prove.md. `samebits help COMMAND` shows the options of a command, with examples.
    """


def main() -> None:
    """Runs the command of `sys.argv`. Exit status 2 and one line on standard error when it could not run."""
    program = typer.main.get_command(app)
    commands = program.commands  # type: ignore[attr-defined]
    name = next((word for word in sys.argv[1:2] if word in commands), "")
    try:
        sys.exit(program.main(prog_name=PROGRAM, standalone_mode=False) or 0)
    except UsageError as error:
        if not sys.argv[1:]:  # the message is the help page
            print(error.format_message(), file=sys.stderr)
            sys.exit(2)
        text = sentence_of(error, name, commands.get(name))
    except (SamebitsError, OSError) as error:
        text = str(error)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    print(printable(": ".join(filter(None, ("samebits", name, text)))), file=sys.stderr)
    sys.exit(2)
