"""One list of the names that draw: each draw of Python, NumPy and torch is in it, whatever a library adds."""

import ast
import random

import numpy as np
import pytest
import torch

from samebits._program.effects.known_functions import RANDOM_METHODS
from samebits._program.made_once import DataDependence
from samebits._program.vocabulary import AMBIGUOUS, NAMES, draws, is_arithmetic, is_draw

QUIET = {
    "VERSION", "getstate", "setstate", "seed", "get_state", "set_state", "bit_generator", "spawn", "default_rng",
}  # fmt: skip
"""Of the generators' attributes, those that draw nothing."""
GENERATORS = {"random": random.Random, "rng": np.random.Generator, "np.random": np.random.RandomState}


def public(kind):
    return {name for name in dir(kind) if name[0] != "_"} - QUIET


def of_torch():
    """The names of torch's operators that take a generator, or have the tag of those that draw."""
    found = set()
    for one in torch._C._jit_get_all_schemas():
        namespace, _, name = one.name.partition("::")
        if namespace == "aten":
            tags = torch._C._get_operation_overload(one.name, one.overload_name)[2]
            tagged = torch.Tag.nondeterministic_seeded in tags
            if tagged or any(given.name == "generator" for given in one.arguments):
                found.add(name)
    return {name for name in found if name[0] != "_"}


def tree(line):
    return ast.parse(line, mode="eval").body


@pytest.mark.slow
def test_every_draw_of_the_libraries_is_in_the_list():
    """Python's, NumPy's (functions of the module, too) and torch's by tag and generator; a draw that is new fails here."""
    modules = {name for name in np.random.__all__ if callable(getattr(np.random, name))} - QUIET
    modules = {name for name in modules if not isinstance(getattr(np.random, name), type)}
    wanted = set.union(*map(public, GENERATORS.values()), modules, of_torch())
    assert len(wanted) > 90 and {"randrange", "binomial", "rand_like", "cauchy_"} <= wanted
    assert wanted - NAMES == set()
    in_place = {name for name in dir(torch.Tensor) if name[0] != "_" and name.removesuffix("_") in of_torch()}
    assert len(in_place) > 9 and in_place <= NAMES
    assert QUIET.isdisjoint(NAMES) and NAMES <= RANDOM_METHODS


def test_a_forgotten_draw_is_seen():
    """Negative control: without one of its names the comparison of the test above is not empty."""
    assert public(random.Random) - (NAMES - {"randrange"}) == {"randrange"}


@pytest.mark.parametrize("owner", GENERATORS)
def test_what_is_made_once_by_a_draw_depends_on_it(owner, tmp_path):
    """`if self.a is None: self.a = random.randrange(100)`, for each draw: made of no constants."""
    for name in sorted(public(GENERATORS[owner])):
        source = (
            f"class Net:\n    def forward(self, n):\n        if self.a is None: self.a = {owner}.{name}(3)\n"
        )
        (file := tmp_path / f"{name}.py").write_text(source)
        assert DataDependence([compile(source, str(file), "exec")]).attribute("a"), name


def test_words_that_are_draws_of_generators_alone_are_arithmetic_elsewhere():
    """`np.power`, `math.gamma`, `bytes(3)` and `f(x)` are no draws; `rng.power`, `np.random.gamma` (control) are."""
    for line in ("np.power(x, 2)", "math.gamma(x)", "torch.special.beta(x)", "bytes(3)", "f(x)"):
        assert not draws(tree(line)), line
    assert is_arithmetic(tree("np.power(x, 2)"))
    for line in (
        "rng.power(2)",
        "np.random.gamma(2)",
        "np.random.default_rng(3).bytes(8)",
        "self.rng.f(1, 2)",
    ):
        assert draws(tree(line)), line
        assert not is_arithmetic(tree(line))
    assert all(is_draw(name, "rng") for name in AMBIGUOUS)
