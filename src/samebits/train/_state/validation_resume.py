"""The position in a validation, in a commit: a resumed run continues inside it, not at its first batch.

A body of Python cannot be entered in its middle. So the commit holds two states: that of the last boundary, from which
the body is run again up to the validation, and that between two batches of the validation, which is restored there. That
is correct only where nothing else changes from batch to batch: values in locals, say, would be those of the first batch.
`CarriedValues` finds them; the validation then starts again from its first batch, and the bits are equal, too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from samebits._context import Position
from samebits._inspect._program import carried_locals
from samebits._inspect.reachable import hashes_in
from samebits.train._state import object_states as state

_TORCHS = torch.nn.Module, torch.optim.Optimizer
"""Types whose state_dict the walk itself leaves out."""


FindUnsaved = Callable[[], list[str]]
"""Returns the paths of values that change from batch to batch and are not saved."""


@dataclass(frozen=True)
class CarriedValues:
    """Hashes of the values that the loop over a validation carries besides those that the run saves; None where unknown."""

    hashes: Mapping[str, bytes] | None
    saved: Mapping[str, frozenset[bytes]]
    """Per name of an object of the run: hashes of the content of its state_dict."""

    @classmethod
    def of_frame(cls, frame: FrameType, objects: Mapping[str, Any], *, direct: bool) -> CarriedValues:
        """Returns the values that the `for` statement in `frame` carries; unless `direct`, it iterates over an object of Python's (enumerate)."""
        if not direct:
            return cls(None, {})
        parts = carried_locals.take(frame, dict(objects), at_exit=True).values()
        hashes = {name: hashed for leaves in parts for name, hashed in leaves.by_name().items()}
        own = {name: thing for name, thing in objects.items() if not isinstance(thing, _TORCHS)}
        held = {
            name: [thing for thing in own.values() if thing is value]
            for name, value in frame.f_locals.items()
        }
        own |= {name: things[0] for name, things in held.items() if things}
        return cls(hashes, {name: hashes_in(name, thing.state_dict()) for name, thing in own.items()})

    def changes(self, now: CarriedValues) -> list[str]:
        """Returns the paths that differ between two batches and are not saved; [] when there are none."""
        if self.hashes is None or now.hashes is None:
            return ["something between the for statement and run.validate (enumerate, zip, tqdm)"]
        before = self.hashes
        differing = [name for name in {*before, *now.hashes} if before.get(name) != now.hashes.get(name)]
        return sorted(
            name for name in differing if now.hashes.get(name) not in now.saved.get(name.split(".")[0], ())
        )


def gather_validation(
    position: Position, objects: Mapping[str, Any], run_state: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the state of a validation for a commit."""
    at = {"loop": position.loop, "step": position.step, "name": position.name, "batch": position.phase_batch}
    return {"at": at, "state": state.gather(objects), "run_state": dict(run_state)}


def belongs_to(saved: Mapping[str, Any], first: Position) -> bool:
    """Returns True if `saved` was taken in the validation that begins at `first`."""
    at = saved["at"]
    return (at["loop"], at["step"], at["name"]) == (first.loop, first.step, first.name)


def restore_inside(
    saved: Mapping[str, Any], objects: Mapping[str, Any], run_state: state.RunState, where: str
) -> int:
    """Restores the state of the validation; returns the number of its next batch."""
    state.restore_changed(objects, saved["state"], where)
    run_state.refill(copy.deepcopy(saved["run_state"]))
    return saved["at"]["batch"]


def print_restart(name: str, changes: list[str]) -> None:
    """Prints why a kill restarts this validation from its first batch."""
    print(
        f"samebits: a kill in run.validate(name={name!r}) restarts it from its first batch, because {', '.join(changes[:4])} "
        "changes from batch to batch and is not saved. Keep it in run.state, or in an object of the run, to resume inside.",
        file=sys.stderr,
    )
