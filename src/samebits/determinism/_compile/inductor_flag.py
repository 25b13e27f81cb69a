"""Inductor's deterministic mode, set without importing Inductor, which takes 1.6 s.

Imported later, Inductor reads its environment variable, which the switch sets. Imported before, its flag is
set here. A plain `config.deterministic = True` would not do: since torch 2.13 a value set that way holds in
one thread only (it is a `ContextVar`), and a compiled model's backward is compiled in another thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from samebits.errors import ConflictError

VARIABLE = "TORCHINDUCTOR_DETERMINISTIC"
_MODULE = "torch._inductor.config"


def refuse_contradiction() -> None:
    """Raises `ConflictError` when the environment turns Inductor's deterministic mode off."""
    value = os.environ.get(VARIABLE)
    if value not in {None, "", "1"}:
        raise ConflictError(
            f"enable_op_determinism(): {VARIABLE}={value} in the environment keeps Inductor's code from "
            "being deterministic. Unset it, or set it to 1."
        )


def contradicted() -> bool:
    """Returns True if Inductor is imported and not deterministic in this thread. 0.1 us."""
    config = sys.modules.get(_MODULE)
    return config is not None and not _reads_true(config)


@contextmanager
def deterministic() -> Iterator[None]:
    """Makes Inductor deterministic inside the block, in every thread, whenever it is imported."""
    variable, config = os.environ.get(VARIABLE), sys.modules.get(_MODULE)
    before = None if config is None else _state(config)
    os.environ[VARIABLE] = "1"
    if config is not None:
        _set(config, (True, True))
    try:
        yield
    finally:
        if variable is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = variable
        config = sys.modules.get(_MODULE)
        if config is not None:  # imported inside the block, it has read our variable
            inherited = variable == "1"
            _set(config, (inherited, inherited) if before is None else before)


def _reads_true(config: Any) -> bool:
    """Returns `config.deterministic`, which takes 3 us by name."""
    entry = config._config["deterministic"]
    override = _override(entry)
    return override if isinstance(override, bool) else bool(entry.default)


def _state(config: Any) -> tuple[Any, bool]:
    entry = config._config["deterministic"]
    return _override(entry), entry.default


def _override(entry: Any) -> Any:
    """Returns the value that was set: in a `ContextVar`, or, before torch 2.13, directly, for all threads."""
    held = entry.user_override
    return held.get() if isinstance(held, ContextVar) else held


def _set(config: Any, state: tuple[Any, bool]) -> None:
    entry = config._config["deterministic"]
    config.deterministic = True  # by the front door first: Inductor's cache key is computed anew
    entry.default = state[1]
    if isinstance(entry.user_override, ContextVar):
        entry.user_override.set(state[0])
    else:
        entry.user_override = state[0]
