"""The command line: its subcommands, and one line instead of a traceback for every error made on purpose."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import samebits
from samebits.cli._commands.commits_command import commits
from samebits.cli._commands.diff_command import diff
from samebits.cli._commands.env_command import env
from samebits.cli._commands.ops_command import ops
from samebits.cli._commands.replica_command import replica
from samebits.cli._commands.run_command import run
from samebits.cli._commands.selfcheck_command import selfcheck
from samebits.cli._commands.verify_command import verify
from samebits.cli._printable import printable
from samebits.cli._script_arguments import OptionsThenScript
from samebits.errors import SamebitsError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(cls=OptionsThenScript)(run)
app.command(cls=OptionsThenScript)(verify)
app.command()(commits)
app.command()(diff)
app.command()(env)
app.command()(ops)
app.command()(replica)
app.command()(selfcheck)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"samebits {samebits.__version__}")
        raise typer.Exit


@app.callback()
def _samebits(
    *,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Bit-for-bit reproducible, pre-emptible training for PyTorch, with the proof.

    Exit status of verify, diff, replica, commits and ops --review: 0 equal, whole, or as promised; 1 not; 2 it could not be
    found out, with one line that gives the reason. run: the script's (75: ended by a signal, start it again and it
    resumes). env, ops: 0.
    """


def main() -> None:
    """Runs the command of `sys.argv`. Exit status 2 and one line on standard error when it could not run."""
    try:
        app()
    except (SamebitsError, OSError) as error:
        print(f"samebits: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
