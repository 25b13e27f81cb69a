"""A draw from torch's default generator before any seed was set raises at the draw.

The guard stands in front of every aten op that draws (tag `nondeterministic_seeded`, 31 on the CPU in torch 2.13)
and removes itself at the first draw after seeding, so that later draws cost what they did before.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from samebits.determinism.caller import where
from samebits.determinism.overrides import Kernel, Overrides, kernels, overload
from samebits.errors import UnseededError
from samebits.random.seeds import torch_was_seeded

_CURE = "Call samebits.set_random_seed(seed) (or torch.manual_seed(seed)) at the top of the program."


class SeedGuard:
    """Installed while the switch is on and nobody has seeded torch."""

    def __init__(self) -> None:
        self._overrides: Overrides | None = None

    def check(self) -> None:
        """Raises `UnseededError` when unseeded draws have already happened."""
        if not torch_was_seeded() and _has_drawn():
            raise UnseededError(
                "enable_op_determinism() was called after torch's default generator, which nobody seeded, had been "
                f"drawn from: what was made so far (initial weights?) cannot be reproduced. {_CURE}"
            )

    def install(self) -> None:
        """Guards every drawing op. Last of all overrides: it removes itself, and must have nothing on top of it."""
        if torch_was_seeded():
            return
        self._overrides = Overrides()
        for name in _drawing_ops():
            self._overrides.put(name, "CPU", lambda kernel, name=name: self._guarded(name, kernel))

    def remove(self) -> None:
        """Takes the guard away; harmless when it is not there."""
        if self._overrides is not None:
            self._overrides.remove()
            self._overrides = None

    def _guarded(self, name: str, kernel: Kernel) -> Kernel:
        arguments = overload(name)._schema.arguments
        place = next((i for i, a in enumerate(arguments) if a.name == "generator"), None)

        def draw(*args: Any, **kwargs: Any) -> Any:
            own = kwargs.get("generator") or (place is not None and len(args) > place and args[place])
            if not own:
                if not torch_was_seeded():
                    _refuse(name)
                self.remove()
            return kernel(*args, **kwargs)

        return draw


@functools.cache
def _drawing_ops() -> list[str]:
    """By their tag, read without making a Python object for each of 3,000 ops (50 ms)."""
    drawing = []
    for name in kernels("CPU"):
        if name.startswith("aten::"):
            packet, _, variant = name.partition(".")
            found = torch._C._get_operation_overload(packet, variant)
            if found is not None and torch.Tag.nondeterministic_seeded in found[2]:
                drawing.append(name)
    return drawing


def _refuse(name: str) -> NoReturn:
    raise UnseededError(
        f"{name} at {where()} draws from torch's default generator, and nobody has set a seed: "
        f"the next run would draw other numbers. {_CURE}"
    )


def _has_drawn() -> bool:
    """Whether the default generator stands elsewhere than where its (operating system's) seed put it."""
    fresh = torch.Generator()
    fresh.manual_seed(torch.default_generator.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())
