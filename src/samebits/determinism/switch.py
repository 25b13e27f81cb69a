"""The switch: `enable_op_determinism` sets torch's flags and our overrides, and puts back exactly what was there.

After TensorFlow's `tf.config.experimental.enable_op_determinism` (RFC 346).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.utils.deterministic

from samebits.context import process
from samebits.determinism.guard import SeedGuard
from samebits.determinism.overrides import Kernel, Overrides
from samebits.errors import InvalidArgumentError, UnseededError

memory_fill: Any = torch.utils.deterministic  # its flag is a property of the module, which no checker sees

_ENVIRONMENT = {
    # cuBLAS reads it once, at its first matmul, and refuses matmul under the switch without it.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Inductor reads it when it is imported; importing it here would cost 1.6 s.
    "TORCHINDUCTOR_DETERMINISTIC": "1",
}


@dataclass(frozen=True)
class _Before:
    """What stood before the switch was turned on."""

    algorithms: bool
    warn_only: bool
    fill: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    inductor: bool | None
    environment: Mapping[str, str | None]
    seed_function: Any


class _Switch:
    def __init__(self) -> None:
        self.before: _Before | None = None
        self.guard = SeedGuard()
        self.overrides: Overrides | None = None

    def turn_on(self) -> None:
        if self.before is not None:
            return
        self.guard.install()  # first: it raises when unseeded draws have happened, before anything is changed
        self.before = _snapshot()
        self.overrides = Overrides()
        for op in (torch.ops.aten.linalg_lstsq.default, torch.ops.aten.linalg_lstsq.out):
            self.overrides.put(op, "CPU", _with_memory_filled)
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        # Filling costs about 15% on large runs; only ops known to read unwritten memory get it (below).
        memory_fill.fill_uninitialized_memory = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        for name, value in _ENVIRONMENT.items():
            if name == "TORCHINDUCTOR_DETERMINISTIC" or name not in os.environ:
                os.environ[name] = value
        if "torch._inductor.config" in sys.modules:
            sys.modules["torch._inductor.config"].deterministic = True  # type: ignore[attr-defined]
        torch.seed = torch.random.seed = _refuse_seed
        process.op_determinism = True

    def turn_off(self) -> None:
        if self.before is None:
            return
        self.guard.remove()
        assert self.overrides is not None
        self.overrides.remove()
        _restore(self.before)
        self.before, self.overrides = None, None
        process.op_determinism = False


_switch = _Switch()


class OpDeterminism:
    """What `enable_op_determinism` returns: leaving its `with` block puts back the state before the call."""

    def __init__(self, *, was_enabled: bool) -> None:
        self._was_enabled = was_enabled

    def __enter__(self) -> None:
        """The switch was set by the call already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._was_enabled)


def enable_op_determinism(enabled: bool = True) -> OpDeterminism:
    """Makes torch's ops reproducible, or raises where they cannot be; `False` restores what was there before.

    Takes effect at once. As a context manager (`with enable_op_determinism():`) it is undone at the end of the
    block. It sets: deterministic algorithms (strict), cuDNN deterministic and without benchmark, the cuBLAS
    workspace, Inductor's deterministic mode, memory fill for the one op that reads unwritten memory
    (`linalg.lstsq`, pytorch#71222), and a guard in front of every op that draws from a default generator.

    Seeds are not set: call `samebits.set_random_seed` as well. A draw that nobody seeded raises `UnseededError`.

    Raises:
        UnseededError: random numbers were drawn before anybody set a seed.
        InvalidArgumentError: `enabled` is not a bool.
    """
    if not isinstance(enabled, bool):
        raise InvalidArgumentError(
            f"enable_op_determinism(enabled={enabled!r}): `enabled` must be True or False. Seeds are set by "
            "samebits.set_random_seed(seed)."
        )
    was_enabled = op_determinism_enabled()
    _set(enabled)
    return OpDeterminism(was_enabled=was_enabled)


def op_determinism_enabled() -> bool:
    """Whether the switch is on."""
    return process.op_determinism


def _set(enabled: bool) -> None:
    if enabled:
        _switch.turn_on()
    else:
        _switch.turn_off()


def _snapshot() -> _Before:
    inductor = sys.modules.get("torch._inductor.config")
    return _Before(
        algorithms=torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        fill=memory_fill.fill_uninitialized_memory,
        cudnn_deterministic=torch.backends.cudnn.deterministic,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        inductor=None if inductor is None else inductor.deterministic,
        environment={name: os.environ.get(name) for name in _ENVIRONMENT},
        seed_function=torch.seed,
    )


def _restore(before: _Before) -> None:
    torch._C._set_deterministic_algorithms(before.algorithms, warn_only=before.warn_only)
    memory_fill.fill_uninitialized_memory = before.fill
    torch.backends.cudnn.deterministic = before.cudnn_deterministic
    torch.backends.cudnn.benchmark = before.cudnn_benchmark
    for name, value in before.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None:  # imported while the switch was on, it has read our environment variable
        inherited = before.environment["TORCHINDUCTOR_DETERMINISTIC"] == "1"
        inductor.deterministic = inherited if before.inductor is None else before.inductor  # type: ignore[attr-defined]
    torch.seed = torch.random.seed = before.seed_function


def _with_memory_filled(kernel: Kernel) -> Kernel:
    def filled(*args: Any, **kwargs: Any) -> Any:
        memory_fill.fill_uninitialized_memory = True
        try:
            return kernel(*args, **kwargs)
        finally:
            memory_fill.fill_uninitialized_memory = False

    return filled


def _refuse_seed() -> NoReturn:
    raise UnseededError(
        "torch.seed() seeds from the operating system, so the next run would draw other numbers; op determinism is "
        "on. Call samebits.set_random_seed(seed) with a seed of your own."
    )
