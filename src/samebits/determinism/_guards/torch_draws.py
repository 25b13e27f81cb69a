"""A draw from torch's default generator before any seed was set raises at the draw.

The guard is in front of every aten op that draws (tag `nondeterministic_seeded`, 31 on the CPU in torch 2.13)
and removes itself at the first draw after seeding, so that later draws cost what they did before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from samebits._inspect.user_call import calling_op
from samebits._unseeded import CURE, no_seed
from samebits.determinism._dispatcher import Kernel, KernelOverrides, kernels, overload
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnseededError, UnseededWarning
from samebits.random._process import generator_states
from samebits.random._process.seeds import torch_was_seeded

_RATES = {"dropout_p", "dropout"}
_DRAW_NOTHING = {
    "aten::_cudnn_attention_forward_no_dropout_inplace",
    "aten::_fused_sdp_choice",
    "aten::_nested_tensor_softmax_with_shape",
    "aten::_scaled_dot_product_flash_attention_for_cpu",  # refuses a dropout
}
"""Ops that have the tag although they draw nothing."""


class SeedGuard:
    """A guard that is installed while the switch is on and torch has no seed."""

    def __init__(self) -> None:
        self._overrides: KernelOverrides | None = None

    def check(self) -> None:
        """Warns, once, when unseeded draws have already happened."""
        if not torch_was_seeded() and _has_drawn():
            text = (
                "enable_op_determinism() was called after torch's default generator, which has no seed, had "
                f"been drawn from: values made so far (initial weights?) differ in every run. {CURE}."
            )
            warn_once("unseeded draws", text, UnseededWarning)
        if not torch_was_seeded():
            for key in _keys():
                _drawing_ops(key)  # now, while no kernel of ours is registered where torch has none

    def install(self) -> None:
        """Guards every drawing op. Installed last: it removes itself, so nothing may be on top of it."""
        if torch_was_seeded():
            return
        self._overrides = KernelOverrides()
        for key in _keys():
            for name in _drawing_ops(key):
                self._overrides.put(name, key, functools.partial(self._guarded, name, _IS_SEEDED[key]))

    def remove(self) -> None:
        """Removes the guard; harmless when it is not installed."""
        if self._overrides is not None:
            self._overrides.remove()
            self._overrides = None

    def _guarded(self, name: str, is_seeded: Callable[[], bool], kernel: Kernel) -> Kernel:
        rule = DrawRule(overload(name)._schema)

        def draw(*args: Any, **kwargs: Any) -> Any:
            if rule.draws_from_default(args, kwargs):
                if not is_seeded():
                    raise unseeded_draw(calling_op(name))
                if not generator_states.is_preserving():
                    self.remove()
            return kernel(*args, **kwargs)

        return draw


class DrawRule:
    """Decides if a call of an op with the tag `nondeterministic_seeded` draws from a default generator."""

    def __init__(self, schema: Any) -> None:
        self._arguments = {argument.name: place for place, argument in enumerate(schema.arguments)}
        self._defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        self._never = schema.name in _DRAW_NOTHING
        self._flags = [name for name in self._arguments if name in {"train", "training"}]
        self._rates = [
            name for name in self._arguments if name in _RATES or (name == "p" and "dropout" in schema.name)
        ]

    def draws_from_default(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Returns False for a call with its own generator, outside of training, or with dropout 0."""
        if self._never or _is_own(self._value("generator", args, kwargs)):
            return False
        return all(self._value(name, args, kwargs) is not False for name in self._flags) and all(
            self._value(name, args, kwargs) != 0 for name in self._rates
        )

    def _value(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = self._arguments.get(name)
        return args[place] if place is not None and place < len(args) else self._defaults.get(name)


def _is_own(generator: Any) -> bool:
    """Returns True for a generator that is neither None nor a default one (`random_split` passes that)."""
    if not isinstance(generator, torch.Generator):
        return generator is not None  # TorchScript: a value that only a call can tell
    defaults = (torch.default_generator, *torch.cuda.default_generators)
    address = _address(generator)  # torch makes a new Python object for every call
    return all(address != _address(default) for default in defaults)


def _address(generator: Any) -> int:
    return generator._cdata


def unseeded_draw(draw: str) -> UnseededError:
    """Returns the error of an op that draws without a seed; `draw`: the op and its line (`calling_op`)."""
    return no_seed(f"{draw} draws from torch's default generator", instead="torch.manual_seed(seed)")


def _keys() -> tuple[str, ...]:
    return ("CPU", "CUDA") if torch.backends.cuda.is_built() else ("CPU",)


@functools.cache
def _drawing_ops(key: str) -> list[str]:
    """Returns the drawing ops by their tag, without making a Python object for each of 3,000 ops (50 ms)."""
    drawing = []
    for name in kernels(key):
        if name.startswith("aten::"):
            packet, _, variant = name.partition(".")
            found = torch._C._get_operation_overload(packet, variant)
            if found is not None and torch.Tag.nondeterministic_seeded in found[2]:
                drawing.append(name)
    return drawing


def _cuda_was_seeded() -> bool:
    """Returns True if `torch.manual_seed` or `torch.cuda.manual_seed` seeded CUDA. (Not yet run on a GPU.)"""
    return torch_was_seeded() or torch.cuda.initial_seed() < 2**32


_IS_SEEDED = {"CPU": torch_was_seeded, "CUDA": _cuda_was_seeded}


def _has_drawn() -> bool:
    """Returns True if the default generator's state is no longer that of its (operating system's) seed."""
    fresh = torch.Generator()
    fresh.manual_seed(torch.default_generator.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())
