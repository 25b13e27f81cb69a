"""The reasons why a value varies: every write of a varying value, and the varying values that it was made of."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from samebits.replica._analysis.partitions import Partitions


@dataclass(slots=True)
class Event:
    """One write. `what` is a node, or the name of an input."""

    what: Node | str
    partition: int
    parents: tuple[int, ...]
    reason: str = ""


class Events:
    """The writes of one pass over a graph. Event 0 represents all values that are equal on every rank."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.log: list[Event] = [Event("", partitions.equal, ())]

    def add(self, what: Node | str, partition: int, parents: tuple[int, ...], reason: str = "") -> int:
        """Adds an event and returns its number."""
        if partition == self._partitions.equal:
            return 0
        self.log.append(Event(what, partition, tuple(dict.fromkeys(one for one in parents if one)), reason))
        return len(self.log) - 1

    def path(self, event: int, over: int) -> list[Event]:
        """Returns the shortest path from a first source that differs within `over` to an event, both included."""
        came: dict[int, int] = {event: event}
        front = [event]
        while front:
            following = []
            for one in front:
                parents = [parent for parent in self.log[one].parents if self._differs(parent, over)]
                if not parents:
                    return [self.log[number] for number in _path_back(one, came)]
                for parent in parents:
                    if parent not in came:
                        came[parent] = one
                        following.append(parent)
            front = following
        return [self.log[event]]

    def _differs(self, event: int, over: int) -> bool:
        return not self._partitions.holds_over(self.log[event].partition, over)


def _path_back(event: int, came: dict[int, int]) -> list[int]:
    found = [event]
    while came[found[-1]] != found[-1]:
        found.append(came[found[-1]])
    return found
