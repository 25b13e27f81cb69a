"""The observations of one training step, until its line is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from samebits._byte_digest import of_bytes
from samebits._context import Position
from samebits._inspect.tree import Leaves


@dataclass
class ObservedStep:
    """A step in progress."""

    position: Position
    due: bool
    """True if its number is one that is recorded."""
    ends: bool
    """True if the loop may end after this step: the end of an epoch."""
    components: dict[str, Leaves] = field(default_factory=dict)
    losses: list[Any] = field(default_factory=list)
    differentiated: list[Any] = field(default_factory=list)
    """Numbers whose gradient `torch.autograd.grad` computed."""
    inputs: list[Leaves] = field(default_factory=list)
    """The inputs of each training forward of a plain script."""
    outputs: list[bytes] = field(default_factory=list)
    """The hashes of the outputs of evaluations."""

    def batch(self) -> Leaves:
        """Returns the inputs of all forwards as one component: those of the second one are numbered after those of the first."""
        names: tuple[str, ...] = ()
        for seen in self.inputs:
            prefix = str(len(names)) if names else ""
            names += tuple(".".join(filter(None, (prefix, name))) for name in seen.names)
        return Leaves(names, b"".join(seen.hashes for seen in self.inputs))

    def evaluations(self) -> str:
        """Returns one digest of all evaluations."""
        return digest_of(self.outputs)

    def join(self, later: ObservedStep) -> None:
        """Adds the observations of `later`: the two were one step, which ends where that one does."""
        self.losses += later.losses
        self.differentiated += later.differentiated
        self.inputs += later.inputs
        self.outputs += later.outputs
        self.components = later.components


def digest_of(hashes: list[bytes]) -> str:
    """Returns one digest of hashes in their order."""
    return of_bytes(*hashes)
