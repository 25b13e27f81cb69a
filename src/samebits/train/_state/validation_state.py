"""How far a validation has come, in a commit: a resumed run goes on inside it, not at its first batch.

A body of Python cannot be entered in its middle. So the commit holds two states: that of the last boundary, from which
the body is run again up to the validation, and that between two batches of the validation, which is put back there. That
is right only where nothing else changes from batch to batch: what the loop carries in locals, say, would be that of the
first batch. `Carried` finds that out; the validation then starts again from its first batch, and the bits are equal, too.
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
from samebits._inspect._program import loop_locals
from samebits._inspect.reachable import hashes_in
from samebits.train._state import run_state as state

_TORCHS = torch.nn.Module, torch.optim.Optimizer
"""Of these the walk itself leaves out what a state_dict holds."""


Look = Callable[[], list[str]]
"""Says what changes from batch to batch and is not saved."""


@dataclass(frozen=True)
class Carried:
    """Hashes of what the loop over a validation holds besides what the run saves; None where that cannot be seen."""

    hashes: Mapping[str, bytes] | None
    saved: Mapping[str, frozenset[bytes]]
    """Per name of an object that was given to the run: hashes of what its state_dict holds."""

    @classmethod
    def by(cls, frame: FrameType, objects: Mapping[str, Any], *, direct: bool) -> Carried:
        """What the `for` statement in `frame` carries; unless `direct`, something of Python's (enumerate) stands between."""
        if not direct:
            return cls(None, {})
        parts = loop_locals.take(frame, dict(objects), at_exit=True).values()
        hashes = {name: hashed for leaves in parts for name, hashed in leaves.by_name().items()}
        own = {name: thing for name, thing in objects.items() if not isinstance(thing, _TORCHS)}
        held = {
            name: [thing for thing in own.values() if thing is value]
            for name, value in frame.f_locals.items()
        }
        own |= {name: things[0] for name, things in held.items() if things}
        return cls(hashes, {name: hashes_in(name, thing.state_dict()) for name, thing in own.items()})

    def changed(self, now: Carried) -> list[str]:
        """What differs between two batches and is not saved; [] when nothing does."""
        if self.hashes is None or now.hashes is None:
            return ["something between the for statement and run.validate (enumerate, zip, tqdm)"]
        before = self.hashes
        differing = [name for name in {*before, *now.hashes} if before.get(name) != now.hashes.get(name)]
        return sorted(
            name for name in differing if now.hashes.get(name) not in now.saved.get(name.split(".")[0], ())
        )


def inside(position: Position, objects: Mapping[str, Any], run_state: Mapping[str, Any]) -> dict[str, Any]:
    """What a commit holds besides the last boundary's state."""
    at = {"loop": position.loop, "step": position.step, "name": position.name, "batch": position.phase_batch}
    return {"at": at, "state": state.gather(objects), "run_state": dict(run_state)}


def is_at(saved: Mapping[str, Any], first: Position) -> bool:
    """Whether `saved` was taken in the validation that begins at `first`."""
    at = saved["at"]
    return (at["loop"], at["step"], at["name"]) == (first.loop, first.step, first.name)


def go_on(saved: Mapping[str, Any], objects: Mapping[str, Any], run_state: state.RunState, where: str) -> int:
    """Puts the state of the validation back; returns the batch that comes next."""
    state.restore_changed(objects, saved["state"], where)
    run_state.refill(copy.deepcopy(saved["run_state"]))
    return saved["at"]["batch"]


def tell_restart(name: str, changed: list[str]) -> None:
    """Says why a kill sends this validation back to its first batch."""
    print(
        f"samebits: a kill in run.validate(name={name!r}) sends it back to its first batch, because {', '.join(changed[:4])} "
        "changes from batch to batch and is not saved. Keep it in run.state, or in an object given to the run, to go on inside.",
        file=sys.stderr,
    )
