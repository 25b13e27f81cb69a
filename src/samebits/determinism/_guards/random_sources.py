"""Sources of random numbers that do not follow the global seed, and the effect of the switch on each.

docs/reference/randomness.md shows the table. A source that is called without a seed raises `UnseededError` at
the calling line. Lines of the standard library, torch and NumPy may call it (`tempfile` draws its names,
torch seeds afterwards), and libraries may draw while they are being imported; generators that they make then
are a warning.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from samebits._inspect.patching import Patches, stand_in
from samebits._inspect.user_call import call_of_frame
from samebits._inspect.user_code import INSTALLED, line_of_frame, outwards, owner_of_frame
from samebits._unseeded import from_entropy
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnseededWarning
from samebits.random._process import generator_states


@dataclass(frozen=True)
class RandomSource:
    """A source of random numbers, called without a seed."""

    name: str
    verdict: Literal["raises", "warns", "outside"]
    instead: str
    lasting: bool = False
    """A generator that is made without a seed draws later, unseen."""


_OF_A_LIBRARY = (
    "a number that is drawn from it before it gets a seed differs in the next run. Give the library's object "
    "its seed, as env.reset(seed=seed) or set_random_state(seed); if you do, or if nothing draws from it, "
    "all is well."
)
_SEED_ALL = "samebits.set_random_seed(seed) at the top of the program"

NUMPY_ENTROPY = RandomSource(
    "numpy.random: default_rng(), SeedSequence(), a bit generator, or seed(), without a seed",
    "raises",
    "a seed, as numpy.random.default_rng(seed); where a state is set afterwards, any seed will do",
    lasting=True,
)
NUMPY_GLOBAL = RandomSource("NumPy's global generator (numpy.random.rand and the like)", "raises", _SEED_ALL)
PYTHON_GLOBAL = RandomSource("Python's global generator (random.random and the like)", "raises", _SEED_ALL)
PYTHON_RANDOM = RandomSource("random.Random() without a seed", "raises", "random.Random(seed)")
PYTHON_SEED = RandomSource("random.seed() without a seed", "raises", "random.seed(seed)")
SYSTEM_RANDOM = RandomSource(
    "random.SystemRandom()", "raises", "random.Random(seed): this one cannot be seeded"
)
TORCH_SEED = RandomSource("torch.seed(), torch.cuda.seed() and the like", "raises", _SEED_ALL)
GENERATOR_SEED = RandomSource("torch.Generator.seed()", "raises", "generator.manual_seed(seed)")
GENERATOR = RandomSource(
    "torch.Generator() that is never seeded",
    "warns",
    "torch.Generator().manual_seed(seed); all generators without a seed draw the same numbers",
)
DISTRIBUTED_SAMPLER = RandomSource(
    "DistributedSampler(shuffle=True) without `seed`",
    "warns",
    "DistributedSampler(..., seed=seed); its default is 0, whatever set_random_seed sets",
)

SOURCES = (
    *(NUMPY_ENTROPY, NUMPY_GLOBAL, PYTHON_GLOBAL, PYTHON_RANDOM, PYTHON_SEED, SYSTEM_RANDOM),
    *(TORCH_SEED, GENERATOR_SEED, GENERATOR, DISTRIBUTED_SAMPLER),
    RandomSource("os.urandom, /dev/urandom", "outside", "a generator with a seed"),
    RandomSource("secrets", "outside", "random.Random(seed)"),
    RandomSource("uuid.uuid1, uuid.uuid4", "outside", "uuid.UUID(int=random.getrandbits(128), version=4)"),
)
"""Every source that the switch knows, and those that it leaves alone because they have other uses."""

_GUARDS = frozenset(
    f"{__package__}.{name}" for name in ("numpy_draws", "python_draws", "torch_generators")
) | {__name__}
"""Modules whose frames are between the calling line and `drawing_frame`."""
_SEEDS_ITSELF = "hypothesis"
"""A library that chooses the seeds of its examples."""


def drawing_frame(frame: FrameType | None = None) -> FrameType | None:
    """Returns the frame that draws random numbers; None where it may.

    The search goes from `frame` outwards, by default from the caller's.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and _is_between(_module(frame)):
        frame = frame.f_back
    return None if frame is None or _may_draw(frame) else frame


def raise_or_warn(source: RandomSource, frame: FrameType | None, line: str = "") -> None:
    """Raises, or warns, for a call of an unseeded source by `frame` (of `drawing_frame`); not for None.

    Raises:
        UnseededError: the source has no seed, so the next run would draw other numbers.
    """
    if frame is None:
        return
    call = call_of_frame(frame)
    where = (
        f"{source.name}, at {line_of_frame(frame)}{call and f' ({call})'}{line}, takes its seed from the "
        "operating system"
    )
    imports = is_import_of_a_library(frame)
    lasts = imports and source.lasting and frame.f_code.co_name == "<module>"
    # a library's generator is out of the user's hands, often seeded afterwards, and seldom drawn from
    made_by_library = not imports and source is NUMPY_ENTROPY and owner_of_frame(frame) in INSTALLED
    if lasts or made_by_library:
        warn_once(f"{source.name} {frame.f_code.co_filename}", f"{where}: {_OF_A_LIBRARY}", UnseededWarning)
    elif not imports:
        raise from_entropy(where, source.instead)


class GlobalGuard:
    """Guards the global generator of a library while it has no seed; a subclass says where it is put."""

    def __init__(self, source: RandomSource, was_seeded: Callable[[], bool]) -> None:
        self._source, self._was_seeded, self._patches = source, was_seeded, Patches()

    def remove(self) -> None:
        """Restores the library's functions; harmless when they are in place."""
        self._patches.undo()

    def checked(self, draw: Callable[..., Any], **attributes: Any) -> Any:
        """Returns `draw`, which raises as long as the generator has no seed."""

        def drawn(*args: Any, **kwargs: Any) -> Any:
            if not self._was_seeded():
                raise_or_warn(self._source, drawing_frame())
            elif not generator_states.is_preserving():
                self.remove()
            return draw(*args, **kwargs)

        return stand_in(draw, drawn, **attributes)

    def seeding(self, seed: Callable[..., Any], **attributes: Any) -> Any:
        """Returns `seed`, which removes the guard when the generator has a seed that lasts."""

        def seeded(*args: Any, **kwargs: Any) -> Any:
            result = seed(*args, **kwargs)
            if not generator_states.is_preserving() and self._was_seeded():
                self.remove()
            return result

        return stand_in(seed, seeded, **attributes)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _may_draw(frame: FrameType) -> bool:
    root = _module(frame).partition(".")[0]
    return root == _SEEDS_ITSELF or owner_of_frame(frame) in ("samebits", "framework", "standard")


def _is_between(module: str) -> bool:
    """Returns True for `random`, which calls itself on the way from the user's line."""
    return module == "random" or module in _GUARDS


def is_import_of_a_library(frame: FrameType) -> bool:
    """Returns True during the import of a library, whose draws its user cannot change (SciPy's examples)."""
    installed = itertools.takewhile(lambda one: owner_of_frame(one) in INSTALLED, outwards(frame))
    module = next((one for one in installed if one.f_code.co_name == "<module>"), None)
    return module is not None and _module(module) != "__main__"
