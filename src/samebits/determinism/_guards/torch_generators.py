"""`torch.Generator` under the switch: no seed from the operating system; a warning if it is never seeded.

A generator starts with a constant of torch's. Drawing from it is reproducible, but surely not intended: every
such generator gives the same numbers, whatever the program's seed. Watching draws would cost time, so the
last few generators that a program made are kept until they are seeded, and checked between two steps and when
another is made.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from samebits._inspect.patching import Patches, stand_in
from samebits._inspect.user_code import calling_line, line_of_frame
from samebits._unseeded import from_entropy
from samebits.determinism._guards.random_sources import (
    DISTRIBUTED_SAMPLER,
    GENERATOR,
    GENERATOR_SEED,
    TORCH_SEED,
    RandomSource,
    drawing_frame,
)
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnseededWarning

_DEFAULT_SEED = torch.Generator().initial_seed()
_UNDRAWN = torch.Generator().get_state()
_made: deque[tuple[torch.Generator, str]] = deque(maxlen=8)
"""Generators without a seed, and the lines that made them."""


def check() -> None:
    """Warns, once per line, of generators that were drawn from and never seeded (0.1 us without any)."""
    if not _made:
        return
    waiting = [(generator, line) for generator, line in _made if _is_unseeded(generator)]
    _made.clear()
    for generator, line in waiting:
        if _has_drawn(generator):
            text = (
                f"{GENERATOR.name}, made at {line}, has the seed {_DEFAULT_SEED} in every program. Use "
                f"{GENERATOR.instead}."
            )
            warn_once(f"generator {line}", text, UnseededWarning)
        else:
            _made.append((generator, line))


def _is_unseeded(generator: torch.Generator) -> bool:
    return generator.initial_seed() == _DEFAULT_SEED


def _has_drawn(generator: torch.Generator) -> bool:
    if generator.device.type == "cpu":
        return not torch.equal(generator.get_state(), _UNDRAWN)
    return generator.get_offset() > 0  # no GPU has run this yet


@contextmanager
def watch_generators() -> Iterator[None]:
    """Notes generators when they are made, and refuses `seed()`, while the block runs."""
    patches = Patches()
    try:
        if type(torch.Generator) is not type:  # since torch 2.12 its class has a class of torch's own
            patches.put(type(torch.Generator), "__call__", _note_generators(type(torch.Generator).__call__))
        replaced: dict[Any, Any] = {}
        """By the function, which several modules have: a pickle of it asks for the one of `torch.random`."""
        devices = (torch.cuda, torch.cuda.random, torch.xpu, torch.xpu.random, torch.mps)
        for module in (torch, torch.random, *devices):
            for name in ("seed", "seed_all"):
                if hasattr(module, name):
                    seed = getattr(module, name)
                    replaced.setdefault(seed, _refuse_seed(seed, TORCH_SEED))
                    patches.put(module, name, replaced[seed])
        if torch.distributed.is_available():
            patches.when_imported(
                "torch.utils.data.distributed",
                lambda module: _watch_sampler(patches, module.DistributedSampler),
            )
        with _refuse_seed_method("seed"):
            yield
    finally:
        patches.undo()
        check()
        _made.clear()


def _note_generators(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def noted(kind: type, *args: Any, **kwargs: Any) -> Any:
        made = make(kind, *args, **kwargs)
        if kind is torch.Generator:
            frame = drawing_frame()
            if frame is not None:
                check()
                _made.append((made, line_of_frame(frame)))
        return made

    return noted


def _refuse_seed(seed: Callable[..., Any], source: RandomSource) -> Any:
    def refused(*_: Any) -> NoReturn:
        raise from_entropy(
            f"{source.name}, called at {calling_line()}, seeds from the operating system; op determinism is "
            "on",
            source.instead,
        )

    return stand_in(seed, refused)


@contextmanager
def _refuse_seed_method(name: str) -> Iterator[None]:
    """Makes `torch.Generator.seed` raise inside the block: for all generators, however they were made.

    The class is immutable, its dictionary is not; Python must be notified, or it uses its cached lookup.
    """
    attributes: Any = gc.get_referents(torch.Generator.__dict__)[0]
    original = attributes[name]
    attributes[name] = _refuse_seed(original, GENERATOR_SEED)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Generator))
    try:
        yield
    finally:
        attributes[name] = original
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Generator))


def _watch_sampler(patches: Patches, sampler: Any) -> None:
    parameters = inspect.signature(sampler.__init__)
    init = sampler.__init__

    @functools.wraps(init)
    def noted(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        given = parameters.bind(*args, **kwargs).arguments
        frame = drawing_frame()
        if frame is not None and given.get("shuffle", True) and "seed" not in given:
            source = DISTRIBUTED_SAMPLER
            text = f"{source.name}, at {line_of_frame(frame)}, shuffles by the seed 0. Use {source.instead}."
            warn_once(f"sampler {line_of_frame(frame)}", text, UnseededWarning)

    patches.put(sampler, "__init__", noted)


atexit.register(check)
