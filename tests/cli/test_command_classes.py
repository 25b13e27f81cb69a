"""Where options of samebits end and a script's arguments begin."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from samebits.cli._app import app as samebits_app
from samebits.cli._command_classes import OptionsThenScript
from samebits.cli._option_values import check_script
from samebits.errors import InvalidArgumentError


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


def test_two_dashes_behind_the_script_are_not_handed_on():
    """`--` directly behind SCRIPT says that the rest is the script's; a second one is the script's (control)."""
    assert parsed(["a.py", "--", "--seed", "3"]) == ("a.py", ["--seed", "3"], 0, False)
    assert parsed(["a.py", "--", "--", "3"]) == ("a.py", ["--", "3"], 0, False)


@pytest.mark.parametrize("name", ["run", "verify"])
def test_the_commands_that_start_a_script_read_so(name):
    """`run` and `verify` take no option from behind SCRIPT."""
    command = typer.main.get_command(samebits_app).commands[name]
    context = command.make_context(name, ["--seed", "3", "a.py", "--seed", "4", "--record=x", "--steps", "3"])
    assert context.params["script"] == "a.py" and context.params["seed"] == 3
    assert context.params["args"] == ["--seed", "4", "--record=x", "--steps", "3"]


def warned(capsys, *words):
    """Standard error of reading the words of `verify`."""
    typer.main.get_command(samebits_app).commands["verify"].make_context("verify", list(words))
    return capsys.readouterr().err


def test_an_option_of_ours_behind_the_script_is_warned_of_once(capsys):
    """One line names those of our options that stand there; the script's own is none (control)."""
    said = warned(capsys, "a.py", "--steps", "3", "--epochs=3", "--json=x", "--steps", "4")
    assert said == (
        "samebits: verify: --steps, --json stand after a.py and went to the script; options of samebits stand before it.\n"
    )
    assert warned(capsys, "a.py", "--steps", "3").startswith("samebits: verify: --steps stands after a.py ")
    assert warned(capsys, "--steps", "3", "a.py", "--epochs", "3", "x") == ""


def test_two_dashes_say_that_it_is_meant(capsys):
    """The same words are warned of without `--` directly behind SCRIPT, and not with it."""
    assert warned(capsys, "a.py", "--", "--steps", "3") == ""
    # control: it is not directly behind
    assert "--steps stands" in warned(capsys, "a.py", "x", "--", "--steps", "3")


@pytest.mark.slow
def test_the_warning_comes_before_the_script_starts(tmp_path):
    """`run` warns first, the script prints then, with the word among its arguments."""
    (tmp_path / "a.py").write_text("import sys; print(sys.argv[1:], file=sys.stderr)")
    command = [sys.executable, "-m", "samebits", "run", "a.py", "--record", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    warning, printed = done.stderr.splitlines()
    assert done.returncode == 0 and "--record stands after a.py" in warning
    assert printed == "['--record', 'x']" and not (tmp_path / "x").exists()


def test_what_is_no_script_is_refused_with_what_to_type(tmp_path):
    """A missing file and a folder are errors; a file is none (control)."""
    (tmp_path / "a.py").touch()
    with pytest.raises(InvalidArgumentError, match="there is no file .*b.py. Give the path"):
        check_script(str(tmp_path / "b.py"))
    with pytest.raises(InvalidArgumentError, match="is a folder. Name the script in it, such as .*/train.py"):
        check_script(str(tmp_path))
    check_script(str(tmp_path / "a.py"))
