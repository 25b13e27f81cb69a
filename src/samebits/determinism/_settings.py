"""The settings that the switch is on with; readers need not import the switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnUnimplemented = Literal["raise", "warn"]


@dataclass(frozen=True)
class Settings:
    """The arguments of `enable_op_determinism`."""

    thread_invariant: bool = False
    on_unimplemented: OnUnimplemented = "raise"


@dataclass
class _Active:
    settings: Settings | None = None


_active = _Active()


def active() -> Settings | None:
    """Returns the settings that the switch is on with; None while it is off."""
    return _active.settings


def activate(settings: Settings | None) -> None:
    """Sets the settings; for the switch alone."""
    _active.settings = settings
