"""Where options of samebits end and a script's arguments begin."""

import pytest
import typer
from typer.testing import CliRunner

from samebits.cli.arguments import OptionsThenScript, ScriptThenAnything


def parsed(kind, words):
    """(script, its arguments, value of --seed, of --keep) as a command of that kind reads `words`."""
    seen = []
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(cls=kind)
    def command(
        script: str,
        args: list[str] = typer.Argument(None),
        seed: int = 0,
        keep: bool = typer.Option(False, "--keep"),
    ):
        seen.append((script, list(args or []), seed, keep))

    result = CliRunner().invoke(app, words)
    return seen[0] if seen else result.exit_code


@pytest.mark.parametrize("kind", [OptionsThenScript, ScriptThenAnything])
def test_options_before_the_script_are_ours(kind):
    """Both commands read their own options first."""
    assert parsed(kind, ["--seed", "3", "--keep", "a.py", "x"]) == ("a.py", ["x"], 3, True)


def test_run_leaves_everything_behind_the_script_alone():
    """Even what has the name of one of our options, and `--`."""
    words = ["a.py", "--seed", "3", "--", "--keep"]
    assert parsed(OptionsThenScript, words) == ("a.py", words[1:], 0, False)


def test_verify_reads_its_options_directly_behind_the_script():
    """`samebits verify train.py --json out.json` reads as people type it."""
    assert parsed(ScriptThenAnything, ["a.py", "--seed=3", "--keep", "x"]) == ("a.py", ["x"], 3, True)
    assert parsed(ScriptThenAnything, ["--keep", "a.py", "--seed", "3"]) == ("a.py", [], 3, True)


def test_the_first_other_word_or_two_dashes_begin_the_scripts_arguments():
    """Whatever comes then is the script's, in its order."""
    assert parsed(ScriptThenAnything, ["a.py", "--epochs", "3", "--seed", "3"]) == (
        "a.py",
        ["--epochs", "3", "--seed", "3"],
        0,
        False,
    )
    assert parsed(ScriptThenAnything, ["a.py", "--keep", "--", "--seed", "3"]) == (
        "a.py",
        ["--seed", "3"],
        0,
        True,
    )


def test_a_mistyped_option_before_the_script_is_an_error():
    """It is not taken for the script."""
    assert parsed(ScriptThenAnything, ["--sede", "3", "a.py"]) == 2
