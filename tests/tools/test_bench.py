"""Every script in bench/ runs, in its smallest form: its figures are no figures, but a script that broke is seen."""

import datetime
import json
import subprocess
import sys

import pytest

import doc_figures

QUICK = {
    "checkpoint.py": "--rounds 1 --steps 20 --only samebits,plain",
    "checkpoint_large.py": "checkpoint.py --size 70MB --rounds 1",
    "elastic.py": "1",
    "data.py": "--rounds 1 --only draws --variants DataLoader",
    "integrations.py": "--rounds 1 --steps 20",
    "ops.py": "--rounds 1 --only switch",
    "parts.py": "1MB 1",
    "portable.py": "--rounds 1 --only ops --threads 1",
    "portable_accuracy.py": "--seeds 1 --only softmax",
    "portable_convolution.py": "--only 1x1 --seconds 0.01",
    "portable_functions.py": "exp --threads 1 --elements 64",
    "portable_product.py": "--threads 1 --only 64 --seconds 0.01",
    "portable_reductions.py": "sum",
    "product_addresses.py": "",
    "quality.py": "",
    "random_numbers.py": "1",
    "record.py": "1",
    "replica.py": "2000",
    "rounding.py": "1",
    "startup.py": "1",
}
"""The smallest arguments of each script."""
PEERS = {"checkpoint_peers.py"}
"""They compute nothing without other frameworks, which have an environment of their own (`make bench-checkpoint`)."""


HELPERS = {"figures.py"}
WRITERS = {
    "checkpoint.py": {"commits"},
    "checkpoint_large.py": {"large"},
    "data.py": set(),
    "elastic.py": {"steps", "memory"},
    "ops.py": {"switch"},
    "parts.py": {"parts"},
    "portable.py": {"ops"},
    "random_numbers.py": {"large", "small"},
    "rounding.py": {"speed"},
    "startup.py": {"processes", "bodies"},
}
"""Scripts with `--json FILE`, and the names of the tables that their smallest arguments write."""


def test_every_script_is_run(root):
    """Each file of bench/ has its smallest arguments here, or needs other frameworks; none that is named is missing."""
    assert {path.name for path in (root / "bench").glob("*.py")} == QUICK.keys() | PEERS | HELPERS


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_script_runs_and_prints(name, root, tmp_path):
    """It ends with status 0, or 2 where what it needs is not there and it says so, and prints a line with a figure."""
    words = QUICK[name].split()
    script = words.pop(0) if ".py" in QUICK[name] else name  # that of a part of another script
    command = [sys.executable, root / "bench" / script, *words]
    command += ["--json", tmp_path / "run.json"] if name in WRITERS else []
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode in ((0, 2) if name == "quality.py" else (0,)), done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed and any(letter.isdigit() for letter in printed), printed
    if name in WRITERS:
        run = json.loads((tmp_path / "run.json").read_text())
        assert {*run["tables"]} == WRITERS[name]
        assert run["command"] == " ".join(["python", f"bench/{script}", *words])
        assert run["machine"] and run["torch"] and datetime.date.fromisoformat(run["date"])
        for table in run["tables"]:
            assert doc_figures.region_of(run, table).count("\n|") > 2
