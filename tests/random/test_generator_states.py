"""The process-wide generators: filled from a key, captured, put back."""

import random

import numpy as np
import pytest
import torch

from samebits._objects import rng_states
from samebits.random._int_keys import fold, root
from samebits.random._process import generator_states


@pytest.fixture(autouse=True)
def _put_back():
    with generator_states.preserve_states():
        yield


def draws():
    """What user code sees of all three libraries, kept normals included."""
    return (
        torch.rand(5).tolist(), torch.randn(3).tolist(), torch.randperm(7).tolist(), torch.randn(40).tolist(),
        np.random.rand(2).tolist(), np.random.randn(3).tolist(), random.random(), random.gauss(0, 1),
    )  # fmt: skip


def test_fill_is_a_function_of_the_key():
    """The same key gives the same draws of every library from any state; another key gives others everywhere."""
    generator_states.fill((1, 2))
    first = draws()
    generator_states.fill((1, 2))
    assert draws() == first
    generator_states.fill((1, 3))
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_fill_in_place_is_the_fill_by_the_libraries(monkeypatch):
    """States, draws, kept normals and torch's seed are the same by either."""
    assert generator_states._has_known_layout()
    for key in np.random.default_rng(1).integers(0, 2**64, (37, 2), dtype=np.uint64).tolist():
        found = []
        for in_place in (True, False):
            monkeypatch.setattr(generator_states, "_has_known_layout", lambda known=in_place: known)
            torch.randn(1), np.random.randn(1), random.gauss(0, 1)
            generator_states.fill(tuple(key), initial_seed=key[0] >> 1)
            found.append((rng_states.of_process(), torch.initial_seed(), draws(), rng_states.of_process()))
        assert found[0] == found[1]
        assert found[0][0] != found[0][3]  # negative control


def test_a_seed_that_ends_in_zeros_is_pythons(monkeypatch):
    """Python leaves out the zeros at the end of its seed: the kernel returns False for such a key, and `fill` is right."""
    key = 1, 10293430857  # of 10^10 keys (1, n) the first one
    assert generator_states.words_of(key)[-1] == 0
    generator_states.fill(key)
    states = rng_states.of_process()
    monkeypatch.setattr(generator_states, "_has_known_layout", lambda: False)
    generator_states.fill(key)
    assert states == rng_states.of_process()


def test_fill_forgets_kept_normals():
    """A normal kept from an odd number of draws does not survive a fill (negative control: it survives a draw)."""
    generator_states.fill((1, 2))
    first = draws()
    torch.randn(1), np.random.randn(1), random.gauss(0, 1)
    generator_states.fill((1, 2))
    assert draws() == first
    torch.manual_seed(1), torch.randn(1)
    kept = torch.randn(1)
    torch.manual_seed(1)
    assert kept != torch.randn(1)


def test_fill_keeps_the_users_seed():
    """`torch.initial_seed()` stays the user's through a fill, or becomes what the caller says."""
    torch.manual_seed(1234)
    generator_states.fill((1, 2))
    assert torch.initial_seed() == 1234
    first = draws()
    generator_states.fill((1, 2), initial_seed=2**63 - 1)
    assert torch.initial_seed() == 2**63 - 1 and draws() == first
    torch.default_generator.set_state(torch.default_generator.get_state())
    assert torch.initial_seed() == 2**63 - 1


@pytest.mark.slow
def test_positions_do_not_collide():
    """10^5 positions give 10^5 different beginnings of torch's stream."""
    seen = set()
    for position in range(100_000):
        generator_states.fill(fold(root(7), position))
        seen.add(tuple(torch.empty(4).uniform_().tolist()))
    assert len(seen) == 100_000


def test_seeds_beyond_32_bits_differ():
    """7 and 7 + 2**32 give different draws (negative control: with torch.manual_seed they are equal)."""

    def drawn(seed):
        generator_states.fill(root(seed))
        return draws()

    assert all(a != b for a, b in zip(drawn(7), drawn(7 + 2**32), strict=True))
    assert torch.equal(torch.manual_seed(7) and torch.rand(4), torch.manual_seed(7 + 2**32) and torch.rand(4))


def test_filled_generators_are_uniform():
    """The first draws after a fill, over positions, are uniform in every library (chi-square, 100 cells, 5 sigma)."""
    rows = []
    for position in range(20_000):
        generator_states.fill(fold(root(1), position))
        rows.append((torch.rand(()).item(), np.random.rand(), random.random()))
    for column in np.array(rows).T:
        counts = np.bincount((column * 100).astype(int), minlength=100)
        assert abs(((counts - 200) ** 2 / 200).sum() - 99) < 5 * np.sqrt(2 * 99)
    correlation = np.corrcoef(np.array(rows).T)
    assert np.abs(correlation - np.eye(3)).max() < 5 / np.sqrt(20_000)


def test_restore_is_exact():
    """Draws after `restore` are those after `capture`, with kept normals; the digest agrees."""
    torch.randn(1), np.random.randn(1), random.gauss(0, 1)
    states = rng_states.of_process()
    before = generator_states.digest()
    first = draws()
    assert generator_states.digest() != before
    states.restore()
    assert generator_states.digest() == before
    assert draws() == first


@pytest.mark.parametrize(
    "draw",
    [torch.rand, lambda n: torch.randn(n), np.random.rand, np.random.randn, lambda n: random.random(),
     lambda n: random.gauss(0, 1)],
)  # fmt: skip
def test_digest_sees_one_draw(draw):
    """One draw from any library changes the digest; no draw leaves it."""
    generator_states.fill((1, 2))
    before = generator_states.digest()
    assert generator_states.digest() == before
    draw(1)
    assert generator_states.digest() != before


def test_preserved_holds_through_an_exception():
    """The caller's generators are back after a block that draws, seeds and raises."""
    torch.randn(1), np.random.randn(1), random.gauss(0, 1)
    before = generator_states.digest()
    with pytest.raises(ZeroDivisionError), generator_states.preserve_states():
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        draws()
        raise ZeroDivisionError
    assert generator_states.digest() == before


def test_another_numpy_generator_is_kept():
    """A bit generator that the user gave to NumPy is captured, digested and restored as well."""
    mersenne = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        states, before = rng_states.of_process(), generator_states.digest()
        first = np.random.rand(3).tolist()
        assert generator_states.digest() != before
        states.restore()
        assert np.random.rand(3).tolist() == first
    finally:
        np.random.set_bit_generator(mersenne)
