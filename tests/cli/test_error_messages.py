"""Wrong calls of the command: one line of one style, with what to type, and exit status 2."""

import sys

import pytest

from samebits.cli import main


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `samebits ...` here; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (tmp_path / "train.py").write_text("open('ran', 'w')")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["samebits", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return call


WRONG = {
    "verfy train.py": "samebits: there is no command 'verfy'. Did you mean 'verify'?",
    "frobnicate": "samebits: there is no command 'frobnicate'. `samebits -h` lists all commands.",
    "--bogus": "samebits: there is no option --bogus. `samebits -h` lists the options.",
    "verify --stpes 4 train.py": "samebits: verify: there is no option --stpes. Did you mean --seed or --steps?",
    "run -x train.py": "samebits: run: there is no option -x. `samebits run -h` lists the options.",
    "verify --steps zero train.py": (
        "samebits: verify: --steps 'zero': must be a whole number, 1 or more, such as 40."
    ),
    "verify --steps 0 train.py": "samebits: verify: --steps '0': must be a whole number, 1 or more, such as 40.",
    "verify --junit - train.py": "samebits: verify: --junit '-': it is no file. Type --junit result.xml.",
    "verify --markdown . train.py": "samebits: verify: --markdown '.': it is no file. Type --markdown result.md.",
    "run --seed x train.py": "samebits: run: --seed 'x': must be a whole number, such as 7.",
    "run --record-level all train.py": "samebits: run: --record-level 'all': choose from loss, state.",
    "verify --timeout soon train.py": (
        "samebits: verify: --timeout 'soon': must be a number of seconds above 0, such as 600."
    ),
    "run --record": "samebits: run: --record needs a value. Type --record DIR, as `samebits run -h` explains.",
    "verify --run=1 train.py": "samebits: verify: --run takes no value. Type --run alone.",
    "run": "samebits: run: SCRIPT is missing. Type for example: samebits run train.py --epochs 3",
    "diff a": "samebits: diff: DIR_B is missing. Type for example: samebits diff runs/a runs/b",
    "diff a b c d": "samebits: diff: 2 words too many: c d. Type for example: samebits diff runs/a runs/b",
    "env x": "samebits: env: 1 word too many: x. Type for example: samebits env",
    "verify none.py": "samebits: verify: there is no file none.py. Give the path of a Python script.",
    "verify": (
        "samebits: verify: SCRIPT is missing. Type for example: samebits verify --run --steps 40 train.py, "
        "or samebits verify --demo for an example of samebits."
    ),
    "verify --demo train.py": (
        "samebits: verify: --demo goes without SCRIPT: it verifies an example of samebits. "
        "Type samebits verify --demo, or samebits verify train.py."
    ),
    "verify --across machines train.py": (
        "samebits: verify: --across goes with --run. A script that is started as it is turns it on itself: "
        'samebits.enable_op_determinism(across="machines").'
    ),
    "run --across cpus train.py": "samebits: run: --across 'cpus': choose from runs, threads, machines.",
    "verify --machine-invariant train.py": (
        "samebits: verify: there is no option --machine-invariant. Did you mean --across machines?"
    ),
    "run --thread-invariant train.py": (
        "samebits: run: there is no option --thread-invariant. Did you mean --across threads?"
    ),
    "commits --keep 3 d": "samebits: commits: --keep and --keep-best go with --prune. Without it nothing is deleted.",
    "commits --export last o d": "samebits: commits: --export 'last': must be the step of a commit, or the word newest.",
    "replica train:f": (
        "samebits: replica: the number of ranks is missing. Give --world-size 8, or --mesh dp=2,tp=4."
    ),
    "help verfy": "samebits: help: there is no command 'verfy'. Did you mean 'verify'?",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_call_is_one_line_with_what_to_type(command, tmp_path, words):
    """Exit status 2, the line alone on standard error, nothing on standard output; the script has not run."""
    assert command(*words.split()) == (2, "", f"{WRONG[words]}\n")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_check_is_refused_with_those_there_are(command):
    """All values of --checks stand in the line."""
    code, out, err = command("verify", "--checks", "kills", "train.py")
    assert (code, out) == (2, "") and err.startswith(
        "samebits: verify: --checks 'kills': choose from run-again, busy, replicas, world-sizes, "
    )


def test_a_right_call_is_no_error(command, tmp_path):
    """Negative control: the same script runs, with options of every kind."""
    code, _, err = command("run", "--seed", "3", "--record-level", "loss", "train.py")
    assert (code, err) == (0, "") and (tmp_path / "ran").exists()


def test_characters_that_control_a_terminal_are_not_printed(command):
    """A word that was typed wrongly is shown with its escapes spelled out."""
    code, _, err = command("\x1b[31mred")
    assert code == 2 and "\x1b" not in err and r"\x1b" in err
