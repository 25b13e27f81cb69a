"""`samebits.testing.run_and_kill`: programs are really killed, and what does not survive it is told."""

import random
import time

import pytest
import torch
from torch import nn

import samebits
from samebits.audit._verify.check_plan import BaselineFacts
from samebits.errors import InvalidArgumentError, VerifyError
from samebits.testing import run_and_kill
from samebits.testing._run_and_kill import plan_kill

CALLS = [0]
"""State of a module: it does not survive a kill."""


def fit(run_dir, forgets=False, epochs=3):
    torch.set_num_threads(1)
    samebits.set_random_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(list(torch.ones(12, 4)), batch_size=3, shuffle=True)
    with samebits.Run(run_dir, model=model, optimizer=optimizer) as run:
        for step, x in run.steps(loader, epochs=epochs):
            CALLS[0] += 1
            loss = model(x + torch.randn_like(x)).square().mean() * (CALLS[0] if forgets else 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step.ends_epoch:
                model.eval()
                with torch.no_grad():
                    run.state.best = min(run.state.get("best", 1e9), model(x).sum().item())
                model.train()
    print("the end")
    return run.state.best


SCRIPT = """
import sys, torch, samebits
samebits.set_random_seed(1)
model = torch.nn.Linear(2, 1)
loader = samebits.data.DataLoader(list(torch.ones(6, 2)), batch_size=2, shuffle=True)
with samebits.Run("runs/mine", model=model) as run:
    for step, x in run.steps(loader, epochs=int(sys.argv[1])):
        model(x).sum().backward()
        model.weight.data -= 0.1 * model.weight.grad + torch.rand(2)
"""


@pytest.mark.slow
def test_a_function_of_a_test_survives_a_kill():
    """A function of a test's module is killed in a validation, resumes in a fresh process, and ends with equal bits."""
    result = run_and_kill(fit, at="validation", seed=1)
    assert result.equal and not result.difference
    assert result.exit_codes == (-9, 0)
    assert "validation" in result.kills[0]
    assert result.output.count("the end") == 1 and "resumed" in result.output


@pytest.mark.slow
def test_what_a_kill_loses_is_named():
    """Negative control: a counter of the module starts anew after a kill; the result says where the runs part."""
    result = run_and_kill(lambda run_dir: fit(run_dir, forgets=True), at=6)
    assert result.kills == ("in step 6",)
    assert not result.equal and result.digest != result.expected
    assert result.difference.startswith(("step 6", "resumed at step", "step 5", "step 4", "step 3")), (
        result.difference
    )


@pytest.mark.slow
def test_a_script_is_killed_at_an_instant_in_any_working_directory(tmp_path, monkeypatch):
    """A script with arguments, killed at a drawn instant; its own run directory is neither read nor written."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    result = run_and_kill("script.py", args=["2"], seed=4)
    assert result.equal and result.exit_codes[-1] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def fails(run_dir):
    fit(run_dir, epochs=1)
    raise ValueError("no such luck")


def hangs(run_dir):
    time.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "told"),
    [(fails, "ValueError: no such luck"), (hangs, "more than 2 s")],
)
def test_a_program_that_fails_or_hangs_is_told(program, told):
    """Negative control: never a hang, never a silent success: the error has the program's output."""
    with pytest.raises(VerifyError, match=told):
        run_and_kill(program, timeout=2 if program is hangs else 60)


def test_a_place_that_does_not_exist_is_refused():
    """Negative control: unknown places, no kill at all, missing scripts."""
    with pytest.raises(InvalidArgumentError, match="times=0"):
        run_and_kill(fit, times=0)
    with pytest.raises(VerifyError, match="no such file"):
        run_and_kill("missing.py")
    with pytest.raises(InvalidArgumentError, match="at='nowhere'"):
        run_and_kill(fit, at=["random", "nowhere"])


SHORTER = SCRIPT.replace(
    "int(sys.argv[1])", "1 if os.path.exists('ran') else open('ran', 'w').write('x') + 1"
).replace("import sys", "import os, sys")


@pytest.mark.slow
def test_a_kill_that_hit_nothing_is_told_as_what_it_is(tmp_path, monkeypatch):
    """A program that does fewer steps the second time ends before its kill: the error says so, and that it has finished."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SHORTER)
    with pytest.raises(VerifyError) as error:
        run_and_kill("script.py", at=5)
    told = str(error.value)
    assert "at=5" in told and "has finished" in told and "did not come to it" in told
    assert "uses no samebits.Run" not in told


def test_a_step_behind_a_drawn_place_is_come_to():
    """at=[7, "commit", 30]: the drawn kill, and every commit before, lie before step 30, whatever the seed."""
    steps = tuple(range(60))
    facts = BaselineFacts(steps, frozenset({19, 39, 59}), frozenset({0, 20, 40}), (), uses_run=True)
    drawn = set()
    for seed in range(200):
        places, draw, begin = [7, "commit", 30], random.Random(seed), 0
        for number, place in enumerate(places, 1):
            planned = plan_kill(place, places[number:], begin, facts, 1.0, draw).process
            assert begin <= planned.kill.step, (seed, place)
            begin = planned.commit_steps[0]
            drawn.add(planned.kill.step)
        assert planned.kill.step == 30
    assert min(drawn - {7, 30}) < 12 and max(drawn - {7, 30}) > 14  # it is still drawn
    late = max(
        plan_kill("commit", [], 7, facts, 1.0, random.Random(seed)).process.kill.step for seed in range(50)
    )
    assert late > 30  # negative control: nothing behind it, it may be late


@pytest.mark.slow
def test_a_kill_before_an_earlier_step_leaves_that_step_to_come():
    """Killed in step 9, then in step 4: what is committed before the first kill lies before the second one."""
    result = run_and_kill(fit, at=[9, 4])
    assert result.equal and result.kills == ("in step 9", "in step 4")
    assert result.exit_codes == (-9, -9, 0)
