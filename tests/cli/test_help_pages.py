"""The help of every command: what is on its page, and how it is reached."""

import importlib
import os
import re
import subprocess
import sys

import pytest
import typer

from samebits.cli import _help_pages as help_pages
from samebits.cli import main
from samebits.cli._app import app

COMMANDS = list(typer.main.get_command(app).commands)


@pytest.fixture
def page(monkeypatch, capsys):
    """What `samebits ...` prints to standard output; it must end well."""

    def call(*words, columns=80):
        monkeypatch.setattr(sys, "argv", ["samebits", *words])
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("PYTHONHASHSEED", "0")
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_three_ways_lead_to_the_same_page(page, command):
    """`-h`, `--help` and `samebits help` print the same text; each command has its own (control)."""
    words = [command] if command else []
    text = page(*words, "-h")
    assert text == page(*words, "--help") == page("help", *words)
    assert text.startswith(f"Usage: samebits {command or 'COMMAND'} ")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_page_has_all_that_one_looks_for(page, command):
    """A sentence, the options, the exit status, two examples of `samebits`, and a page of the docs."""
    text = page(*filter(None, [command]), "-h")
    paragraphs = text.split("\n\n")
    assert paragraphs[1][0].isupper() and paragraphs[1].rstrip().endswith(".")
    assert "-h, --help" in text
    assert re.search(r"^Exit status: .*\b0\b", text, re.M | re.S)
    examples = text.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2 and all(example.startswith("    samebits ") for example in examples)
    assert re.search(r"^Read more: docs/[a-z-]+/[a-z-]+\.md", text, re.M)


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_page_fits_the_terminal_and_nothing_is_cut(page, command, columns):
    """Wrapped text is no wider than the terminal and than 100 columns, and no line is cut off."""
    text = page(*filter(None, [command]), "-h", columns=columns)
    wrapped = [line for line in text.splitlines() if not line.startswith("    ") or line.startswith("     ")]
    widest = 85 if columns == 60 else min(columns, 100)  # examples and listings keep their lines
    assert all(len(line) <= widest for line in wrapped)
    assert not any(line.endswith(("...", "\u2026")) for line in text.splitlines()[1:])  # after the usage line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_word_of_the_parser_is_left(page, command):
    """No type in angle brackets, no range, no braces; every option and argument has a text."""
    text = page(*filter(None, [command]), "-h")
    assert not re.search(r"<[a-z ]+>|\[x[<>]|range|INTEGER|FLOAT|[0-9]<=x|\{[A-Z]+\}", text)
    described = typer.main.get_command(app) if not command else typer.main.get_command(app).commands[command]
    assert all(parameter.help for parameter in described.params)


def test_every_command_is_listed_with_its_whole_sentence(page):
    """Each stands in a group, in the order of use, with the first paragraph of its page."""
    text = page("-h", columns=100)
    at = [text.index(f"\n  {command} ") for command in COMMANDS]
    assert at == sorted(at)
    for command in COMMANDS:
        docstring = typer.main.get_command(app).commands[command].help
        assert help_pages.first_sentence(docstring) in " ".join(text.split())
    groups = re.findall(r"^([A-Z].*):$", text, re.M)
    assert groups[:2] == ["Check a script", "Look at a run"] and groups[-2:] == ["Options", "Examples"]


def test_the_examples_are_read_by_the_command_line(monkeypatch):
    """Each example on a page parses with the options it shows; one with another option does not (control)."""
    program = typer.main.get_command(app)
    for name, command in program.commands.items():
        for line in command.help.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines():
            first, second, *words = line.strip().partition("  ")[0].split()
            assert (first, second) == ("samebits", name)
            command.make_context(name, words)
    with pytest.raises(Exception, match="No such option"):
        program.commands["env"].make_context("env", ["--jsn", "x"])


def test_verify_lists_its_checks(page):
    """Every value that --checks takes stands on the page."""
    text = page("verify", "-h")
    plan = importlib.import_module("samebits.audit._verify.check_plan")
    assert all(
        re.search(rf"\b{check}\b", text.partition("Checks:")[2]) for check in (*plan.GROUPS, *plan.KILLS)
    )


def test_a_block_with_indented_lines_is_kept_as_it_is():
    """Listings keep their lines and spaces; a paragraph is filled (control)."""
    text = help_pages.command_page("x", "First\nline.\n\nExamples:\n    samebits x   y", [])
    assert text == "Usage: samebits x [OPTIONS]\n\nFirst line.\n\nExamples:\n    samebits x   y"


def test_the_help_imports_neither_torch_nor_rich():
    """In a fresh process; `samebits.cli._reports.commits_report` does import rich (control)."""
    program = (
        "import sys; sys.argv = ['samebits', '--help']\nimport samebits.cli\n"
        "try: samebits.cli.main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'rich', 'pydantic') if name in sys.modules])\n"
        "samebits.cli._reports.commits_report\nprint('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-2:] == ["[]", "True"], done.stderr


COMPLETE = """
source <(samebits --show-completion)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_samebits_completion samebits
echo "${COMPREPLY[*]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["samebits", "ver"], "verify"),
        (["samebits", "help", "comm"], "commits"),
        (["samebits", "verify", "--st"], "--steps"),
        # the script's own: the shell completes files
        (["samebits", "verify", "--run", "train.py", "--st"], ""),
        (["samebits", "nosuch"], ""),
    ],
)
def test_bash_completes_commands_and_options(tmp_path, words, completed):
    """In a real bash, by the script that --show-completion prints; nothing of ours behind SCRIPT."""
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    command = ["bash", "-c", COMPLETE, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=100)
    assert (done.stdout.strip(), done.stderr) == (completed, "")
