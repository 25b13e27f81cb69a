import pytest

DRAW = """
import torch, samebits
samebits.enable_op_determinism()
try:
    {draw}
except samebits.errors.UnseededError as error:
    print("refused", error)
else:
    print("drew")
"""


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("draw", "op"),
    [
        ("torch.rand(3)", "aten::uniform_"),
        ("torch.nn.Linear(2, 2)", "aten::uniform_"),
        ("torch.randperm(5)", "aten::randperm"),
        ("torch.nn.functional.dropout(torch.ones(4), 0.5)", "aten::"),
        ("torch.multinomial(torch.ones(4), 2)", "aten::"),
    ],
)
def test_an_unseeded_draw_raises_at_the_draw(python, draw, op):
    """A draw from the default generator that nobody seeded raises, naming the op, the user's line and the cure."""
    out = python(DRAW.format(draw=draw)).stdout
    assert out.startswith("refused")
    assert op in out and "script.py:5" in out and "samebits.set_random_seed" in out


def test_a_private_generator_may_draw(python):
    """A draw from a generator of the user's own is not refused."""
    assert (
        "drew" in python(DRAW.format(draw="torch.rand(3, generator=torch.Generator().manual_seed(1))")).stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeding", ["samebits.set_random_seed(5)", "torch.manual_seed(5)", "torch.manual_seed(2**40)"]
)
def test_a_seeded_draw_is_free_and_unchanged(python, seeding):
    """After seeding, draws give torch's own bits, and the guard has removed itself."""
    out = python(
        "import torch, samebits\n"
        "from samebits.determinism import _switch as switch\n"
        f"samebits.enable_op_determinism()\n{seeding}\n"
        "a = torch.rand(5)\n"
        "assert switch._switch.guard._overrides is None\n"
        f"samebits.enable_op_determinism(False)\n{seeding}\n"
        "print(torch.equal(a, torch.rand(5)))\n"
    ).stdout
    assert "True" in out


def test_draws_before_the_switch_are_a_warning(python):
    """Weights that were drawn before anybody seeded cannot be made reproducible afterwards: enabling says so, once."""
    done = python(
        "import torch, samebits\n"
        "torch.nn.Linear(2, 2)\n"
        "for _ in range(2):\n"
        "    samebits.enable_op_determinism()\n"
        "    print(samebits.op_determinism_enabled())\n"
        "    samebits.enable_op_determinism(False)\n"
        "from samebits.determinism._warn_once import notices\n"
        "print(len(notices()))\n"
    )
    assert done.stdout.split() == ["True", "True", "1"]
    assert done.stderr.count("UnseededWarning") == 1 and "script.py:4" in done.stderr
    assert "initial weights" in done.stderr and "samebits.set_random_seed" in done.stderr


@pytest.mark.slow
def test_without_the_switch_torch_is_as_ever(python):
    """Negative control: the same unseeded draw is not refused while the switch is off."""
    out = python(DRAW.format(draw="torch.rand(3)").replace("samebits.enable_op_determinism()", "")).stdout
    assert "drew" in out
