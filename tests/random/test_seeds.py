"""One seed for all libraries, and what others have seeded."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import samebits.random as sr
from samebits import _context as context
from samebits.errors import InvalidArgumentError
from samebits.random._process import generator_states, seeds


@pytest.fixture(autouse=True)
def _put_back():
    seed, run_key = context.process.seed, context.process.run_key
    with generator_states.preserve_states():
        yield
    context.process.seed, context.process.run_key = seed, run_key


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, np.int64(5)])
def test_seeds_every_library(seed):
    """One seed gives the same draws of torch, NumPy and Python again; torch's are those of `torch.manual_seed`."""
    sr.set_random_seed(seed)
    first = draws()
    draws()
    sr.set_random_seed(seed)
    assert draws() == first
    assert torch.initial_seed() == seed == context.process.seed == seeds.root_seed()
    assert type(context.process.seed) is int
    torch.manual_seed(seed)
    assert torch.rand(3).tolist() == first[0]


def test_all_bits_of_the_seed_count():
    """NumPy and Python differ for 7 and 7 + 2**32 (negative control: torch.manual_seed takes 32 bits of it)."""
    sr.set_random_seed(7)
    a = draws()
    sr.set_random_seed(7 + 2**32)
    b = draws()
    assert a[0] == b[0] and a[1] != b[1] and a[2] != b[2]


@pytest.mark.parametrize(
    ("seed", "named"),
    [
        (True, "bool"),
        (1.0, "float"),
        ("1", "str"),
        (None, "NoneType"),
        (-1, "a negative seed"),
        (2**63, r"2\*\*63"),
    ],
)
def test_a_wrong_seed_changes_nothing(seed, named):
    """A seed that is no int or out of range raises, names what it was, and leaves every generator as it was."""
    context.process.seed = 17
    before = generator_states.digest()
    with pytest.raises(InvalidArgumentError, match=named):
        sr.set_random_seed(seed)
    assert generator_states.digest() == before and context.process.seed == 17


def test_the_run_key_stays():
    """The key of a run that is open is not touched."""
    context.process.run_key = (1, 2)
    sr.set_random_seed(3)
    assert context.process.run_key == (1, 2)


FIRST_SEED = """
import sys, torch
if "before" in sys.argv: torch.manual_seed(7)
from samebits.random._process import generator_states as generators, seeds
print(seeds.torch_was_seeded(), seeds.root_seed())
generators.fill((1, 2))
print(seeds.torch_was_seeded())
torch.manual_seed(2**40)
print(seeds.torch_was_seeded(), seeds.root_seed())
"""


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("when", "expected"), [("never", ["False None", "False"]), ("before", ["True 7", "True"])]
)
def test_knows_whether_torch_was_seeded(when, expected):
    """An unseeded process says so, also after a fill; a seed before the import or after it is seen."""
    ran = subprocess.run([sys.executable, "-c", FIRST_SEED, when], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [*expected, f"True {2**40}"]
