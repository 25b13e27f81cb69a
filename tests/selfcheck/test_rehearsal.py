"""All parts of `samebits selfcheck`, rehearsed without a GPU."""

import os
import subprocess
import sys

import pytest

from samebits.selfcheck import parts, rehearse

FEWEST = {
    "random": 1000,
    "switch": 1000,
    "training": 5,
    "compiled": 5,
    "commits": 5,
    "rounding": 300,
    "arithmetic": 300,
    "processes": 5,
}
"""Each part plants more results than that."""
NEEDS_NOTHING = {"switch", "training", "compiled", "commits", "processes"}
SLOW = {"arithmetic"}
"""It compiles every function of the arithmetic."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in parts.NAMES]
)
def test_every_planted_wrong_result_is_found(name):
    """Results, spoiled one at a time: none is missed, no case fails for what is right, and every case of the part is there."""
    (found,) = rehearse([name])
    assert found.found == found.planted > FEWEST[name] and found.missed == found.broken == []
    assert found.cases == len(list(parts.part_named(name).cases()))
    assert name not in NEEDS_NOTHING or found.skipped == []


@pytest.mark.parametrize(("part", "status"), [("good", 0), ("blind", 1)])
def test_a_dry_run_that_went_well_exits_with_0(part, status):
    """`samebits selfcheck --dry-run`: 0 where all that was planted is found, 1 where a judge sees nothing (control)."""
    command = [sys.executable, "-m", "samebits", "selfcheck", "--dry-run", "--part", f"own.{part}"]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == status, done.stderr
