"""Where options of samebits end and a script's arguments begin."""

import pytest
import typer
from typer.testing import CliRunner

from samebits.cli._app import app as samebits_app
from samebits.cli._script_arguments import OptionsThenScript, misplaced_options


def parsed(words):
    """(script, its arguments, value of --seed, of --keep) as a command reads `words`."""
    seen = []
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(cls=OptionsThenScript)
    def command(
        script: str,
        args: list[str] = typer.Argument(None),
        seed: int = 0,
        keep: bool = typer.Option(False, "--keep"),
    ):
        seen.append((script, list(args or []), seed, keep))

    result = CliRunner().invoke(app, words)
    return seen[0] if seen else result.exit_code


def test_options_before_the_script_are_ours():
    """They are read, with their values; the first word that is none is the script."""
    assert parsed(["--seed", "3", "--keep", "a.py", "x"]) == ("a.py", ["x"], 3, True)


def test_everything_behind_the_script_is_the_scripts():
    """Even what has the name of one of our options, directly behind it too, and `--`."""
    words = ["a.py", "--seed", "3", "--", "--keep"]
    assert parsed(words) == ("a.py", words[1:], 0, False)


def test_a_mistyped_option_before_the_script_is_an_error():
    """It is not taken for the script."""
    assert parsed(["--sede", "3", "a.py"]) == 2


@pytest.mark.parametrize("name", ["run", "verify"])
def test_the_commands_that_start_a_script_read_so(name):
    """`run` and `verify` take no option from behind SCRIPT."""
    command = typer.main.get_command(samebits_app).commands[name]
    context = command.make_context(name, ["--seed", "3", "a.py", "--seed", "4", "--record=x", "--steps", "3"])
    assert context.params["script"] == "a.py" and context.params["seed"] == 3
    assert context.params["args"] == ["--seed", "4", "--record=x", "--steps", "3"]


def test_a_remark_names_what_looks_like_ours_behind_the_script():
    """Only words with the name of one of our options, once each; an option of the script's own is none (control)."""
    own = typer.main.get_command(samebits_app).commands["verify"].params
    remark = misplaced_options(own, ["--steps", "3", "--epochs=3", "--json=x", "--steps", "4"])
    assert "(--steps, --json after SCRIPT" in remark
    assert misplaced_options(own, ["--epochs", "3", "x"]) == ""
