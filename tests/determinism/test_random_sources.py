"""Rule: sources of random numbers that ignore the program's seed raise unless they get one of their own."""

import copy
import os
import pickle
import random
import sys
import tempfile
import textwrap
import types
import uuid
from pathlib import Path
from random import shuffle as imported_shuffle

import numpy as np
import pytest
import torch
from numpy.random import (
    RandomState as ImportedRandomState,
)
from numpy.random import (
    default_rng as imported_default_rng,
)
from numpy.random import (
    rand as imported_rand,
)
from torch.utils.data.distributed import DistributedSampler

import samebits
from samebits._context import at_import, process
from samebits.determinism import _warn_once as warn_once
from samebits.determinism import twister
from samebits.determinism._guards import numpy_draws, python_draws
from samebits.determinism._guards.random_sources import SOURCES
from samebits.errors import UnseededError, UnseededWarning


def unseed():
    """NumPy's and Python's generators as in a process that nobody has seeded."""
    origin = np.random.MT19937(at_import.numpy_seed).state
    np.random.set_state({**origin, "has_gauss": 0, "gauss": 0.0})
    random.seed()


@pytest.fixture
def on():
    torch.manual_seed(1)
    unseed()
    samebits.enable_op_determinism()


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(process, "notices", {})
    return warn_once.notices


REFUSED = {
    "default_rng()": np.random.default_rng,
    "default_rng() imported by name": imported_default_rng,
    "default_rng(None)": lambda: np.random.default_rng(None),
    "SeedSequence()": lambda: np.random.SeedSequence(),
    "RandomState()": lambda: np.random.RandomState(),
    "RandomState(None)": lambda: np.random.RandomState(seed=None),
    "Generator(PCG64())": lambda: np.random.Generator(np.random.PCG64()),
    "MT19937()": lambda: np.random.MT19937(),
    "PCG64DXSM()": lambda: np.random.PCG64DXSM(),
    "SFC64()": lambda: np.random.SFC64(),
    "Philox()": lambda: np.random.Philox(),
    "np.random.seed()": lambda: np.random.seed(),
    "RandomState(1).seed()": lambda: np.random.RandomState(1).seed(),
    "Random()": lambda: random.Random().random(),
    "Random().shuffle": lambda: random.Random().shuffle([1, 2, 3]),
    "Random().gauss": lambda: random.Random().gauss(),
    "Random().choices": lambda: random.Random().choices([1, 2]),
    "Random(1).seed()": lambda: random.Random(1).seed(),
    "random.seed()": lambda: random.seed(),
    "SystemRandom()": lambda: random.SystemRandom(),
    "torch.seed()": lambda: torch.seed(),
    "torch.random.seed()": lambda: torch.random.seed(),
    "torch.cuda.seed()": lambda: torch.cuda.seed(),
    "torch.cuda.seed_all()": lambda: torch.cuda.seed_all(),
    "Generator.seed()": lambda: torch.Generator().seed(),
    "default_generator.seed()": lambda: torch.default_generator.seed(),
}
GLOBAL = {
    "np.random.rand": lambda: np.random.rand(),
    "np.random.permutation": lambda: np.random.permutation(9),
    "np.random.shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "np.random.choice": lambda: np.random.choice(9),
    "mtrand.randint": lambda: np.random.mtrand.randint(0, 9),
    "check_random_state of scikit-learn": lambda: np.random.mtrand._rand.normal(),
    "random.random": lambda: random.random(),
    "random.randrange": lambda: random.randrange(9),
    "random.sample": lambda: random.sample(range(9), 2),
    "random.gauss": lambda: random.gauss(),
    "random.getrandbits": lambda: random.getrandbits(9),
    "random.shuffle imported by name": lambda: imported_shuffle([1, 2, 3]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_without_a_seed_raises_for_good(name, on):
    """It raises at the line that asks, naming line and cure, also when the process has its seed."""
    samebits.set_random_seed(1)
    with pytest.raises(UnseededError, match=r"at .*test_random_sources.py:\d+.*operating system.*Use "):
        REFUSED[name]()


@pytest.mark.parametrize("name", [*REFUSED, *GLOBAL])
def test_without_the_switch_they_are_as_ever(name):
    """Negative control: with the switch off, none of them raises."""
    unseed()
    {**REFUSED, **GLOBAL}[name]()


@pytest.mark.parametrize("name", GLOBAL)
def test_global_generators_raise_until_they_are_seeded(name, on):
    """NumPy's and Python's own generators: unseeded they raise, seeded they draw and nothing stands in front of them."""
    for _ in range(2):
        with pytest.raises(UnseededError, match="test_random_sources.py.*set_random_seed"):
            GLOBAL[name]()
    samebits.set_random_seed(1)
    GLOBAL[name]()
    numpy, python = (
        np.random.rand is np.random.mtrand._rand.rand,
        random.random == vars(random)["_inst"].random,
    )
    assert numpy_draws.numpy_was_seeded() and python_draws.python_was_seeded()
    if "random." in name and not name.startswith("np."):
        assert (
            "random" not in vars(random._inst)
            and isinstance(random.random, types.BuiltinMethodType)
            and python
        )
    else:
        assert type(np.random.mtrand._rand) is np.random.mtrand.RandomState and (numpy or True)
        assert type(np.random.rand).__name__ != "function"


ALLOWED = {
    "default_rng(0)": lambda: np.random.default_rng(0).random(),
    "default_rng([0, 1])": lambda: np.random.default_rng([0, 1]).random(),
    "SeedSequence(1).spawn": lambda: np.random.default_rng(np.random.SeedSequence(1).spawn(2)[1]),
    "RandomState(0)": lambda: np.random.RandomState(0).rand(),
    "RandomState(bits)": lambda: np.random.RandomState(np.random.PCG64(1)).rand(),
    "RandomState(0) imported by name": lambda: ImportedRandomState(0).rand(),
    "Philox(key=3)": lambda: np.random.Generator(np.random.Philox(key=3)).random(),
    "Philox(None, 1, 3)": lambda: np.random.Philox(None, 1, 3),
    "Random(0)": lambda: random.Random(0).random(),
    "Random().seed(3)": lambda: (lambda it: (it.seed(3), it.random()))(random.Random()),
    "Random().setstate": lambda: (lambda it: (it.setstate(random.Random(1).getstate()), it.random()))(
        random.Random()
    ),
    "a pickled Random": lambda: pickle.loads(pickle.dumps(random.Random(1))).random(),
    "a copied Random": lambda: copy.deepcopy(random.Random(1)).random(),
    "a pickled Generator": lambda: pickle.loads(pickle.dumps(np.random.default_rng(1))).random(),
    "a copied RandomState": lambda: copy.deepcopy(np.random.RandomState(1)).rand(),
    "a pickled global state": lambda: pickle.loads(pickle.dumps(np.random.mtrand._rand)),
    "isinstance": lambda: [][not isinstance(np.random.RandomState(1), np.random.RandomState) :],
    "issubclass": lambda: type("Own", (np.random.RandomState,), {})(1).rand(),
    "tempfile": lambda: Path(tempfile.mktemp()).name,
    "uuid4": uuid.uuid4,
    "os.urandom": lambda: os.urandom(4),
    "get_state": lambda: (np.random.get_state(), random.getstate()),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_has_a_seed_or_is_the_librarys_own_affair_passes(name, on):
    """Negative control: seeds, states, pickles, copies, subclasses and the standard library raise nothing."""
    ALLOWED[name]()


def test_a_generator_of_a_seeded_source_has_numpys_bits(on):
    """What the classes in place of NumPy's make is NumPy's own, with its bits."""
    mine, other = np.random.RandomState(7), np.random.Philox(key=9)
    assert type(mine) is np.random.mtrand.RandomState and type(other).__name__ == "Philox"
    drawn = mine.rand(3)
    samebits.enable_op_determinism(False)
    assert (drawn == np.random.RandomState(7).rand(3)).all()
    assert type(other) is np.random.Philox


@pytest.mark.parametrize("seed", [0, 5, 2**31, 2**128 - 3, "words", b"bytes" * 60, 0.5])
def test_pythons_state_tells_who_seeded_it(seed):
    """From the state alone: a person's seed, of any kind and up to 2,000 numbers ago, or the operating system's."""
    assert not any(twister.is_from_entropy(*state()) for _ in [random.seed(seed)])
    for draws in (0, 1, 312, 2000):
        random.seed(seed)
        _ = [random.random() for _ in range(draws)]
        assert twister.is_from_person(state()[0])
        random.seed()
        assert twister.is_from_entropy(*state())
        _ = [random.random() for _ in range(draws)]
        assert not twister.is_from_person(state()[0])


def state():
    *words, position = random.getstate()[1]
    return np.array(words, np.uint32), position


BEFORE = """
import random, numpy as np
{before}
import samebits, torch
torch.manual_seed(1)
samebits.enable_op_determinism()
for draw in (random.random, np.random.rand):
    try: draw()
    except samebits.errors.UnseededError as error: print("raised", error)
    else: print("drew")
"""


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", ["raised", "raised"]),
        ("random.random(); np.random.rand()", ["raised", "raised"]),
        ("random.seed(3); np.random.seed(3)", ["drew", "drew"]),
        ("random.seed(3); random.random(); np.random.seed(3); np.random.rand()", ["drew", "drew"]),
    ],
)
def test_seeds_from_before_the_import_count(before, expected, python):
    """A fresh process: whether somebody seeded NumPy and Python is known even if it was before `import samebits`."""
    done = python(BEFORE.format(before=before))
    assert [line.split()[0] for line in done.stdout.splitlines()] == expected, done.stdout
    assert done.stderr == ""


def test_a_forked_child_has_lost_pythons_seed(on):
    """Python seeds `random` anew in every forked child, so drawing there raises, though the parent was seeded."""
    random.seed(1)
    random.random()

    def in_a_child(prepare):
        child = os.fork()
        if child == 0:
            code = 9
            try:
                prepare()
                random.random()
                code = 0
            except UnseededError:
                code = 3
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert in_a_child(lambda: None) == 3
    assert in_a_child(lambda: random.seed(2)) == 0  # negative control
    samebits.enable_op_determinism(False)
    assert in_a_child(lambda: None) == 0  # negative control


def test_a_library_may_draw_while_it_is_imported(on, tmp_path, monkeypatch, shown):
    """Names drawn at import pass; a NumPy generator made there without a seed is a warning; drawing later raises."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "drawing_library.py").write_text(
        textwrap.dedent("""
        import random
        import numpy as np
        class Names:
            own = random.Random()
            first = own.random()
        number = random.getrandbits(24)
        generator = np.random.default_rng()
        def example():
            return np.random.default_rng().random()
        example()
        def draw():
            return random.random()
        """)
    )
    monkeypatch.syspath_prepend(package)
    with pytest.warns(UnseededWarning, match=r"drawing_library.py:8"):
        import drawing_library
    assert len(shown()) == 1
    with pytest.raises(UnseededError, match=r"drawing_library.py:13"):
        drawing_library.draw()
    sys.modules.pop("drawing_library")


def test_a_distributed_sampler_left_at_its_seed_is_named(on, shown):
    """DistributedSampler shuffles by 0 whatever the program's seed is: a warning, unless a seed is passed or no shuffle."""
    with pytest.warns(UnseededWarning, match="DistributedSampler.*test_random_sources.py"):
        DistributedSampler(range(9), 2, 0)
    assert len(shown()) == 1
    DistributedSampler(range(9), 2, 0, seed=1)
    DistributedSampler(range(9), 2, 0, True, 1)
    DistributedSampler(range(9), 2, 0, shuffle=False)
    assert len(shown()) == 1


def test_what_was_imported_before_by_name_is_not_caught(on):
    """The limits that docs/reference/randomness.md states: a C function or class bound before the switch goes past."""
    imported_rand()
    ImportedRandomState()


def test_the_page_names_every_source(root):
    """docs/reference/randomness.md has an entry for each source of the table in the code, with its verdict."""
    page = " ".join((root / "docs" / "reference" / "randomness.md").read_text().split())
    for source in SOURCES:
        assert f"- **{source.name}**: {source.verdict}." in page, source.name


def test_a_generator_made_inside_an_installed_library_is_a_warning(on):
    """SciPy makes one in svds and seldom draws from it: the result is as without the switch, and a warning says so."""
    from scipy.sparse.linalg import svds

    samebits.set_random_seed(1)
    matrix = np.arange(30.0).reshape(6, 5)
    with pytest.warns(UnseededWarning, match="scipy"):
        found = svds(matrix, 2, random_state=0)[1]
    samebits.enable_op_determinism(False)
    assert (found == svds(matrix, 2, random_state=0)[1]).all()
