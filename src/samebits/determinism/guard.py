"""A draw from torch's default generator before any seed was set raises at the draw.

The guard stands in front of every aten op that draws (tag `nondeterministic_seeded`, 31 on the CPU in torch 2.13)
and removes itself at the first draw after seeding, so that later draws cost what they did before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

from samebits.determinism.overrides import Kernel, Overrides, aten_ops, has_kernel
from samebits.errors import UnseededError
from samebits.random.seeds import torch_was_seeded

_CURE = "Call samebits.set_random_seed(seed) (or torch.manual_seed(seed)) at the top of the program."
_OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


class SeedGuard:
    """Installed while the switch is on and nobody has seeded torch."""

    def __init__(self) -> None:
        self._overrides: Overrides | None = None

    def install(self) -> None:
        """Guards every drawing op; raises `UnseededError` when unseeded draws have already happened."""
        if torch_was_seeded():
            return
        if _has_drawn():
            raise UnseededError(
                "enable_op_determinism() was called after torch's default generator, which nobody seeded, had been "
                f"drawn from: what was made so far (initial weights?) cannot be reproduced. {_CURE}"
            )
        self._overrides = Overrides()
        for op in aten_ops():
            if torch.Tag.nondeterministic_seeded in op.tags and has_kernel(op, "CPU"):
                self._overrides.put(op, "CPU", lambda kernel, op=op: self._guarded(op, kernel))

    def remove(self) -> None:
        """Takes the guard away; harmless when it is not there."""
        if self._overrides is not None:
            self._overrides.remove()
            self._overrides = None

    def _guarded(self, op: torch._ops.OpOverload, kernel: Kernel) -> Kernel:
        place = next((i for i, a in enumerate(op._schema.arguments) if a.name == "generator"), None)

        def draw(*args: Any, **kwargs: Any) -> Any:
            own = kwargs.get("generator") or (place is not None and len(args) > place and args[place])
            if not own:
                if not torch_was_seeded():
                    _refuse(op)
                self.remove()
            return kernel(*args, **kwargs)

        return draw


def _refuse(op: torch._ops.OpOverload) -> NoReturn:
    raise UnseededError(
        f"{op.name()} at {_caller()} draws from torch's default generator, and nobody has set a seed: "
        f"the next run would draw other numbers. {_CURE}"
    )


def _has_drawn() -> bool:
    """Whether the default generator stands elsewhere than where its (operating system's) seed put it."""
    fresh = torch.Generator()
    fresh.manual_seed(torch.default_generator.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())


def _caller() -> str:
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
