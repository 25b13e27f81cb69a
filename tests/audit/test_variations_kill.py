"""Kills at a chosen place, and the record of a run that several processes made."""

import json
import subprocess
import sys

import pytest

from samebits._context import CheckOverrides
from samebits.audit._child.kill_points import Kill
from samebits.audit._child.launch_spec import LaunchSpec
from samebits.audit._first_difference import first_difference
from samebits.audit._record.record_file import read_record, read_segments

SCRIPT = """
import sys, warnings
import torch, samebits.random
from samebits.train import Run
warnings.simplefilter("ignore")
torch.set_num_threads(1)

class Meter:
    def __init__(self):
        self.last, self.cache = None, {}  # written before it is read; filled on demand

def main():
    samebits.random.set_random_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    batches = [torch.full((8, 4), float(number)) + torch.arange(32.0).view(8, 4) for number in range(4)]
    meter, best = Meter(), 1e9
    broken = sys.argv[1:] == ["broken"]
    with Run("runs/it", model=model, optimizer=optimizer) as run:
        for step, x in run.steps(batches, epochs=2):
            if step.batch_index == 1:
                with torch.no_grad():
                    model[0](x)  # as a program does that plays, or asks a teacher, before it learns
            loss = model(x).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            meter.last = loss.item()
            meter.cache.setdefault(step.batch_index, x.sum())
            if broken:
                best = min(best, loss.item())
            if step.ends_epoch:
                model.eval()
                with torch.no_grad():
                    model(x)
                model.train()

main()
"""
# Forks one child per launch from a process that has imported torch and never used it: real processes, real kills.
SERVER = """
import json, os, sys
import torch._dynamo  # the first optimizer step would import it, in every child anew
from samebits.audit._child.launch import main
for spec, *arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        code = main([spec, *arguments])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
KILLS = [
    ("body", 3, 2),
    ("body", 5, 5),
    ("optimizer", 5, 4),
    ("validation", 3, 2),
    ("validation", 5, 4),
    ("after_body", 3, 2),
    ("commit", 4, 4),
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Launches everything once; returns folder and exit codes by name."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "script.py").write_text(SCRIPT)
    names, launches = [], []

    def add(name, *arguments, commit_steps=None, kill=None):
        overrides = CheckOverrides(run_root=folder / "runs" / name, commit_steps=commit_steps)
        spec = LaunchSpec(record_dir=str(folder / name), overrides=overrides, kill=kill)
        path = spec.write(folder / f"{len(names)}.json")
        names.append(name)
        launches.append([str(path), str(folder / "script.py"), *arguments])

    add("base")
    add("again")
    add("base-broken", "broken")
    for at, step, commit in KILLS:
        add(f"{at}-{step}", commit_steps=(2, commit), kill=Kill(at, step))
        add(f"{at}-{step}", commit_steps=(2, commit))
    for kill in (Kill("body", 3), None):
        add("killed-broken", "broken", commit_steps=(2,), kill=kill)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, json.dumps(launches)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    codes = {}
    for name, code in zip(names, done.stdout.split(), strict=True):
        codes.setdefault(name, []).append(int(code))
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return folder, codes


@pytest.mark.slow
def test_two_uninterrupted_runs_are_equal(outcome):
    """The twin of every kill: the script itself gives the same record twice."""
    folder, codes = outcome
    assert codes["base"] == codes["again"] == [0]
    assert first_difference(read_record(folder / "base"), read_record(folder / "again")) is None


@pytest.mark.slow
@pytest.mark.parametrize(("at", "step", "commit"), KILLS)
def test_a_kill_hits_its_place_and_the_resumed_run_is_equal(outcome, at, step, commit):
    """SIGKILL ends the process at the step, the record says so, and with the rest it is the uninterrupted record.

    The meter's attributes, which a restart loses, do not count: one is written before it is read, one is a cache.
    """
    folder, codes = outcome
    assert codes[f"{at}-{step}"] == [-9, 0]
    first, second = read_segments(folder / f"{at}-{step}")
    assert first.killed == {"kind": "killed", "at": at, "step": step}
    # step 5 evaluates before the optimizer only
    after = at == "after_body" or (at, step) == ("validation", 5)
    last = step if after else step - 1
    assert max(number for _, number in first.steps) == last
    assert second.resumed_from == (2 if at == "commit" else commit)
    baseline = read_record(folder / "base")
    found = first_difference(baseline, first, second)
    assert found is None, found.sentence()
    assert second.final == baseline.final


def test_a_local_that_is_lost_in_a_restart_is_the_difference(outcome):
    """`best` lives in a local: the resumed process begins without it, and the sentence names it."""
    folder, codes = outcome
    assert codes["killed-broken"] == [-9, 0]
    segments = read_segments(folder / "killed-broken")
    found = first_difference(read_record(folder / "base-broken"), *segments)
    assert (found.component, found.paths) == ("locals", ("best",))
    assert found.sentence().startswith("resumed at step 2: local variable `best` differs")
    merged = read_record(folder / "killed-broken")
    assert sorted(number for _, number in merged.steps) == list(range(8))


def test_a_missing_process_is_a_difference(outcome):
    """A run that was killed and never resumed did not reach the end; one that lost steps has another number."""
    folder, _ = outcome
    base = read_record(folder / "base")
    first, second = read_segments(folder / "body-5")
    assert first_difference(base, first).component == "end"
    second.steps.pop(("train", 7))
    assert first_difference(base, first, second).component == "steps"
