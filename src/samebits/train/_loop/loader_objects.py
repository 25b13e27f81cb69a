"""The objects of a run that reading its loader may change: a sampler with a count, a dataset, a stream.

To resume in the middle of an epoch, torch's loaders and iterables are read again from its begin, and samplers
always are. So a commit has the state of such objects at the epoch's begin, too: reading starts from there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from samebits import _digest as digest
from samebits._objects import rng_states
from samebits._objects.generators import generators_in
from samebits.data._resumable import Resumable
from samebits.errors import CorruptCommitError, SamebitsError
from samebits.state._attributes import Attributes
from samebits.state._known_classes import HeldGenerators
from samebits.train._committed_state import CommittedState, gather, restore_changed
from samebits.train._object_states import Stateful, is_programs_own

States = dict[str, Any]
"""By the name of an object, the tree of its gathered state."""


class LoaderObjects:
    """Those among `objects` that `loader` reaches."""

    def __init__(self, objects: Mapping[str, Stateful], loader: Any) -> None:
        self._objects, self._loader = objects, loader
        self._found: tuple[list[int], list[str]] = [], []

    def take(self) -> States:
        """Returns their states, at an epoch's begin."""
        reached = self._reached().items()
        return {name: copy.deepcopy(gather({name: one}).objects_to_dict()) for name, one in reached}

    def restore(self, states: States) -> None:
        """Gives them states that `take` has returned."""
        for name, one in self._reached().items():
            restore_changed({name: one}, CommittedState.of(states[name]), _WHERE)

    def begin_again(self, begin: States, committed: States, *, ahead: bool) -> Callable[[], None]:
        """Gives them their states of the epoch's begin; returns what is called when it has been read again.

        `ahead`: the loader had read more than the loop when the commit was made. Then an object that reading
        has changed stays as it is; else each gets its state of the commit.
        """
        objects = self._reached()
        try:
            self.restore(begin)
        except SamebitsError:
            raise
        except Exception as error:
            raise CorruptCommitError(
                f"{_WHERE}: the newest commit holds what no run writes ({error!r:.200}). Remove its "
                "folder to resume from the one before."
            ) from error

        def give_back() -> None:
            for name, one in objects.items():
                own, before = {name: one}, CommittedState.of(begin[name]).objects
                if ahead and digest.of_value(gather(own).objects) != digest.of_value(before):
                    continue  # reading has changed it
                restore_changed(own, CommittedState.of(committed[name]), _WHERE)

        return give_back

    def _reached(self) -> dict[str, Stateful]:
        objects, kinds = self._objects.items(), Attributes | HeldGenerators
        own = {name: one for name, one in objects if isinstance(one, kinds) or is_programs_own(one)}
        ids = [id(getattr(one, "target", one)) for one in own.values()]
        if ids != self._found[0]:
            reached: dict[int, Any] = {}
            if roots := _roots(self._loader) if ids else []:
                generators_in(roots, reached)
                reached[id(self._loader)] = self._loader
            found = [name for name, one in zip(own, ids, strict=True) if one in reached]
            self._found = ids, found
        return {name: own[name] for name in self._found[1]}


_WHERE = "reading the epoch again"


def _roots(loader: Any) -> list[tuple[str, Any]]:
    """Returns what is read again: of a loader of samebits its sampler, if it is the program's."""
    if isinstance(loader, Resumable) and not getattr(loader, "_own_sampler", False):
        return []
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers.append(getattr(samplers[-1], "sampler", None))
    whole = [] if isinstance(loader, Resumable) else [loader, *rng_states.of_loader(loader)]
    return [("loader", one) for one in whole + samplers]
