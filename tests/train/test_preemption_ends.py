"""Signals that come in the narrowest places: as a batch arrives, and while the interpreter takes itself down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import samebits
from samebits.train._loop.preemption import Preemption

SECONDS = 60
LAST_MOMENT = """
import os, signal, sys
import samebits

class Late:
    def __init__(self, kill=os.kill, pid=os.getpid()):
        self.kill, self.pid = kill, pid
    def __del__(self):  # when modules are freed, after Python has put default handlers back
        self.kill(self.pid, 15)

late = Late()
samebits.set_random_seed(1)
with samebits.Run(sys.argv[1]) as run:
    for step, x in run.steps([1, 2, 3]):
        if step.number == 1 and sys.argv[2] == "signalled":
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.first_case_quick
@pytest.mark.parametrize(("how", "code"), [("signalled", 75), ("undisturbed", -signal.SIGTERM)])
def test_a_signal_to_an_interpreter_that_takes_itself_down(tmp_path: Path, how: str, code: int) -> None:
    """SIGTERM again in the interpreter's last moments leaves exit code 75; without a first one (control) it kills."""
    command = [sys.executable, "-c", LAST_MOMENT, str(tmp_path / "r"), how]
    assert subprocess.run(command, capture_output=True, timeout=SECONDS).returncode == code


def train(run_dir: Path, *, interrupted: bool = False, inside: bool = False) -> tuple[Any, bool]:
    """Two epochs; where `interrupted`, SIGTERM comes just when the third batch (of a validation: `inside`) has."""
    samebits.set_random_seed(5)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)
    came = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal came
        if event == "call" and frame.f_code is Preemption.end_wait.__code__:
            came += 1
            if came == 3:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGTERM)

    with samebits.Run(run_dir, model=model, optimizer=optimizer, save=1, check_complete=False) as run:
        if interrupted and not inside:
            sys.setprofile(profile)
        for step, x in run.steps(loader, epochs=2):
            optimizer.zero_grad()
            (model(x).square().mean() + torch.rand(())).backward()
            optimizer.step()
            if step.ends_epoch:
                run.state.total = 0.0
                if interrupted and inside:
                    sys.setprofile(profile)
                for y in run.validate(loader):
                    run.state.total += float(model(y).sum().detach())
    return (model.weight.detach().tolist(), run.state.total), run.resumed


@pytest.mark.parametrize("inside", [False, True], ids=["training", "validation"])
def test_a_signal_as_the_batch_arrives(forked: Any, tmp_path: Path, inside: bool) -> None:
    """SIGTERM between a batch's arrival and the body: exit code 75 and the boundary before the batch, then equal bits."""
    expected = forked(lambda: train(tmp_path / "whole")).value[0]
    assert forked(lambda: train(tmp_path / "r", interrupted=True, inside=inside)).code == 75
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)
