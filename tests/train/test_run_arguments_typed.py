"""What an error about a call says to type works when typed: the robot types it, and the program passes."""

import pytest

import paste_robot
from paste_programs import HEAD, STEP, TAIL

pytestmark = pytest.mark.usefixtures("one_thread")
PROGRAM = (
    HEAD
    + TAIL
    + STEP
    + """
class Ema:  # an object without a state_dict that holds one with
    def __init__(self): self.value, self.opt = 0.5, torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
ema = Ema()
with samebits.Run("runs/a", model=model, opt=opt, save=2) as run:
    run.add("extra", [1])
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b)
"""
)
WRONG = {
    "objects without names": ("model=model, opt=opt, save=2", "model, opt, save=2"),
    "an object without a name": ('run.add("extra", [1])', "extra = [1]; run.add(extra)"),
    "an object inside another": ('run.add("extra", [1])', "run.add(extra=ema.opt)"),
    "an object of a call": ('run.add("extra", [1])', "run.add(samebits.state.attributes(ema, 'value'))"),
    "two objects inside another": ("model=model, opt=opt, save=2", "model, ema.opt, opt=opt, save=2"),
    "two numbers": ("loader, epochs=1", 'loader, 1, "train"'),
    "an unknown argument": ("loader, epochs=1", "loader, epochs=1, shuffle=True"),
    "an optimizer inside an object": (
        'run.add("extra", [1])',
        'run.add("ema", samebits.state.attributes(ema))',
    ),
}
"""The text of the program, and what is written in its place."""


def test_the_program_passes(tmp_path):
    """As it is the program needs no paste: a wrong call is what the robot mends below (control)."""
    outcome = paste_robot.cured(PROGRAM, tmp_path)
    assert (outcome.rounds, outcome.verdict) == ([], "equal"), outcome.text


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", WRONG)
def test_what_is_typed_instead_works(name, tmp_path):
    """One error, one line typed in the place that the traceback shows, and the program resumes with equal weights."""
    outcome = paste_robot.cured(PROGRAM.replace(*WRONG[name]), tmp_path)
    assert outcome.verdict == "equal", (outcome.messages, outcome.text)
    assert len(outcome.rounds) == 1 and outcome.rounds[0][1] >= 1, outcome
