"""What a run goes on from: a committed state, put back where the program has come as far as it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

from samebits._context import Position
from samebits.checkpoint import Manifest
from samebits.errors import RunMismatchError
from samebits.train._loop.loops import Loops
from samebits.train._state import compatibility, validation_state
from samebits.train._state import run_state as state
from samebits.train._state.environment_check import Environment


class Resuming:
    """The committed state of the run in `where`; until `load`, there is none."""

    def __init__(
        self, where: str, objects: Mapping[str, state.Stateful], run_state: state.RunState, loops: Loops
    ) -> None:
        self._where, self._objects, self._run_state, self._loops = where, objects, run_state, loops
        self._saved: dict[str, Any] | None = None
        self._inside: dict[str, Any] | None = None
        """The validation in which the commit stands, until it has been entered."""

    def load(
        self, manifest: Manifest, saved: dict[str, Any], environment: Environment, allowed: frozenset[str]
    ) -> None:
        """Takes up a commit, and restores it if all its objects are there; else `run.add` is still to come.

        Raises:
            RunMismatchError: it is of another program or environment; nothing was changed.
        """
        environment.check(manifest, self._where, allowed)
        compatibility.check_fits(self._objects, saved, self._where, complete=False)
        environment.resume(manifest, self._where, allowed)
        self._saved, self._inside = saved, saved.get("inside")
        self._loops.load(saved["loops"])
        if self._objects.keys() == saved["objects"].keys():
            self.restore()

    def tell(self, manifest: Manifest) -> None:
        """Says on stderr where the run goes on."""
        at = manifest.position
        if manifest.finished:
            text = f"the run in {self._where} has finished ({manifest.step} steps); unless asked for more, only code behind its loops runs"
        else:
            text = (
                f"resumed {self._where} at step {at['step']} (epoch {at['epoch']}, batch {at['batch_index']})"
            )
            if self._inside is not None:
                text += ", to go on at batch {batch} of {name!r} in step {step}".format_map(
                    self._inside["at"]
                )
        print(f"samebits: {text}", file=sys.stderr)

    def check_holds(self, name: str) -> None:
        """Raises `RunMismatchError` for an object of a name that the commit has not."""
        if self._saved is not None and name not in self._saved["objects"]:
            raise RunMismatchError(
                f"Run.add({name!r}): the commit in {self._where} holds no object of that name."
            )

    def restore(self) -> None:
        """Puts the committed state back into the objects (again, where a loop resumes)."""
        assert self._saved is not None
        compatibility.check_fits(self._objects, self._saved, self._where)
        state.restore(self._objects, self._saved, self._where)
        self._run_state.refill(copy.deepcopy(self._saved["run_state"]), self._saved.get("in_hand"))

    def enter_validation(self, first: Position) -> int:
        """The batch at which this validation begins: 0, or where a commit inside it was made, whose state is put back."""
        if self._inside is None or not validation_state.is_at(self._inside, first):
            return 0
        saved, self._inside = self._inside, None
        return validation_state.go_on(saved, self._objects, self._run_state, self._where)
