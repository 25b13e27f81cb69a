"""The parts of `samebits selfcheck` that train in processes of their own: on the CPU, as far as they go without a GPU."""

import json
import subprocess
from dataclasses import replace

import pytest
import torch

from samebits.audit._verify import check_plan
from samebits.errors import VerifyError
from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Target, expected
from samebits.selfcheck.parts import commits, compiled, processes, training
from samebits.selfcheck.parts.commits import snapshot_alternatives
from samebits.selfcheck.programs.job import TrainingJob, run_in_fresh_processes, run_killed_and_resumed

SMALL = TrainingJob(device="cpu", small=True, steps=6)


@pytest.mark.slow
def test_without_samebits_installed_a_script_is_verified(uninstalled, tmp_path):
    """From sources that are installed nowhere `python -m samebits` verifies the digits example, in all its processes."""
    command, environment = uninstalled
    asked = "import importlib.metadata as m; m.version('samebits')"
    gone = subprocess.run(
        [*command, "-c", asked], env=environment, capture_output=True, text=True, check=False
    )
    assert "PackageNotFoundError" in gone.stderr
    verify = [
        "-m",
        "samebits",
        "verify",
        "--steps",
        "8",
        "--checks",
        "kill-mid-epoch",
        "--json",
        tmp_path / "v",
    ]
    found = subprocess.run(
        [*command, *verify, "digits.py"], cwd=training.EXAMPLES, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    told = json.loads((tmp_path / "v").read_text())
    assert told["verdict"].startswith("VERIFIED") and told["environment"]["packages"]["samebits"]


def test_the_rows_are_those_of_verify():
    """What the judge expects of an example is what verify promises of a script with a Run, loaders and epochs."""
    facts = check_plan.BaselineFacts(
        tuple(range(9)), frozenset({3, 6, 8}), frozenset({0, 4, 7}), (3, 6), True, [0], across="threads"
    )
    rows = [check_plan.run_again(), *check_plan.checks_after(facts, check_plan.GROUPS, 1)]
    assert [check.name for check in rows] == list(training.VERIFIED["rows"]) and all(r.promised for r in rows)


BROKEN = """
import argparse, os, torch, samebits
parser = argparse.ArgumentParser()
parser.add_argument("--device")
parser.parse_args()
samebits.set_random_seed(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9 * {rate})
with samebits.Run("runs/x", model=model, optimizer=optimizer) as run:
    for step, x in run.steps(samebits.data.DataLoader(torch.randn(12, 2), batch_size=2), epochs=2):
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_does_not_repeat_is_seen(tmp_path, monkeypatch):
    """The measurement runs verify in a process, and the judge sees a script whose steps depend on the process; no report raises."""
    monkeypatch.setattr(training, "EXAMPLES", tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN.format(rate="os.getpid()"))
    (tmp_path / "verify").mkdir()
    place = Target("cpu", small=True, folder=tmp_path / "verify")
    measured = training.verify_example("broken.py", place, "--checks", "kill-mid-epoch", "--steps", "8")
    wrong = list(expected(**training.VERIFIED)(measured.results))
    assert (
        measured.results["exit"] == 1
        and measured.results["verdict"] == "NOT REPRODUCIBLE"
        and len(wrong) == 3
    )
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "verify" / "verify.json").unlink()
    with pytest.raises(VerifyError, match=r"raises.py ended with 2"):
        training.verify_example("raises.py", place)


@pytest.mark.slow
def test_training_is_repeated_in_another_process():
    """Two processes end with the same weights and one with another seed does not; the case has times with and without."""
    measured = training.train_twice("convnet", "bfloat16", Target("cpu", small=True))
    assert not list(same(measured.results)) and measured.figures["ratio"] > 0
    (other,) = run_in_fresh_processes(replace(SMALL, steps=20, task="convnet", dtype="bfloat16", seed=2), 200)
    changed = {**measured.results, "another": [other["model"], other["optimizer"]]}
    assert list(same(changed))


def test_batches_that_a_pipeline_moves_are_judged():
    """The batches of the CPU, and those of a pipeline with a device, with workers and without, are equal; one wrong number is seen."""
    found = training.measure_batches(Target("cpu", small=True)).results
    assert len(found) == 3 and all(len(batches) == 8 for batches in found.values())
    assert not list(same(found))
    found["on the device, 2 workers"][5][0, 0] += 1
    assert list(same(found))


@pytest.mark.slow
def test_a_process_that_fails_is_told():
    """A job that raises, takes too long, or is not killed where it should be is an error with what it printed."""
    with pytest.raises(VerifyError, match=r"ended with \[1\].*no_such_device|ended with \[1\].*device"):
        run_in_fresh_processes(replace(SMALL, device="no_such_device"), 200)
    with pytest.raises(VerifyError, match="took more than"):
        run_in_fresh_processes(replace(SMALL, steps=10**6), 12)
    with pytest.raises(VerifyError, match="was to be killed"):
        run_in_fresh_processes(replace(SMALL, kill_at=5), 200)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 2), ("gloo", 1)])
def test_ranks_are_killed_and_resumed(tmp_path, backend, ranks):
    """Two processes of a DistributedDataParallel end, killed and resumed, with the bits of an uninterrupted run, on each rank."""
    measured = processes.measure_ranks(backend, ranks, Target("cpu", small=True, folder=tmp_path))
    assert not list(same(measured.results)) and len(measured.results) == 2 * ranks


@pytest.mark.slow
def test_a_run_that_is_not_resumed_is_seen(tmp_path):
    """A run whose commits are gone begins anew, with the same bits at its end: the judges see that it was not resumed."""
    measured = commits.measure_resume(Target("cpu", small=True, folder=tmp_path))
    assert not list(same(measured.results))
    whole, anew = run_killed_and_resumed(replace(SMALL, seed=3), tmp_path / "other", 3, 200)
    assert anew[0]["resumed"] and not whole[0]["resumed"] and anew[0]["model"] == whole[0]["model"]


def test_what_a_snapshot_copies_is_judged():
    """The judge of a slot's memory sees copies that differ from what they are of, and memory that was not pinned."""
    measured = commits.measure_pinned(Target("cpu", small=True))
    assert list(commits.judge_pinned(measured.results)) == ["pinned is False, not True"]
    torn = {**measured.results, "copies": [*measured.results["copies"][:2], "xxh3-128:torn"]}
    assert any("originals" in line for line in commits.judge_pinned({**torn, "pinned": True}))


class Late:
    """A snapshot that is taken when somebody asks for it."""

    def __init__(self, state, *, late):
        self.state, self.late, self.host = state, late, state.clone()

    def take(self):
        if not self.late:
            self.host.copy_(self.state)

    def settle(self):
        if self.late:
            self.host.copy_(self.state)


def test_a_torn_snapshot_is_counted():
    """What is copied after the training has gone on is torn, each time; what is copied at once is not."""
    state, work = torch.zeros(10), torch.ones(2, 2)
    assert snapshot_alternatives._torn(state, work, Late(state, late=True)) == 5
    assert snapshot_alternatives._torn(state, work, Late(state, late=False)) == 0


def test_an_op_that_varies_is_seen():
    """A function with other bits at each call is not equal; one that raises our error is refused; the judge wants either."""
    values = iter(range(100))
    assert compiled.repeat_calls(lambda: torch.tensor(next(values)), ()).startswith("20 results")
    assert compiled.repeat_calls(lambda: torch.ones(2), ()) == compiled.EQUAL

    def refused():
        raise VerifyError("x")

    assert compiled.repeat_calls(refused, ()) == compiled.REFUSED
    told = {**compiled.SCATTERS, "cumsum": "2 results in 20 calls"}
    assert len(list(compiled.judge_scatters(told))) == 1 and not list(
        compiled.judge_scatters(compiled.SCATTERS)
    )


COMPILED = """
from pathlib import Path
from samebits.selfcheck.case import Target
from samebits.selfcheck.parts import compiled
if __name__ == "__main__":
    print(compiled.measure_scatters(Target("cpu", small=True)).results)
"""


@pytest.mark.slow
def test_the_functions_with_atomics_compile(python):
    """On the CPU each function of the list is compiled under the switch, and repeats or is refused."""
    told = python(COMPILED).stdout.splitlines()[-1]
    results = eval(told)
    assert results.keys() == compiled.SCATTERS.keys() and not list(compiled.judge_scatters(results)), told


AUTOTUNE = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
from samebits.selfcheck.case import Target
from samebits.selfcheck.parts import compiled
import triton.runtime.autotuner as tuner
tuner.Autotuner._bench = lambda self, *args, config, **meta: [float(config.kwargs["BLOCK"] != 1024)] * 3
print(compiled.measure_autotuning(Target("cpu")))
"""


@pytest.mark.slow
def test_a_users_autotuned_kernel_takes_its_first_configuration(python):
    """In Triton's interpreter: under the switch the first of two configurations runs, where a timing would choose the other."""
    pytest.importorskip("triton")
    told = python(AUTOTUNE).stdout
    assert "{'first call': 64, 'another size': 64}" in told and "'chosen by time': '1024'" in told, told


@pytest.mark.parametrize("capability", [80, 90])
def test_the_autotuned_kernel_compiles_for_a_gpu(capability, tmp_path, monkeypatch):
    """Each configuration of the kernel that is tuned compiles for sm_80 and sm_90, and stores what it was compiled with."""
    pytest.importorskip("triton")
    from samebits.selfcheck.parts.compiled.kernel import which
    from triton_ahead import compiled as ahead

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    out = torch.zeros(5000, dtype=torch.int32)
    for config in which.configs:
        ptx = ahead((which.fn, (out, len(out)), config.all_kwargs()), capability).asm["ptx"]
        assert "st.global" in ptx and str(config.kwargs["BLOCK"]) in ptx
