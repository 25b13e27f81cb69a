"""Declarations of inputs: the ranks on which one holds the same bits when a step starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.partitions import Groups, Partitions


@dataclass(frozen=True)
class Equal:
    """The same bits on all ranks.

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> samebits.replica.analyze(captured).is_replica_equal("output")
        False
        >>> declared = {"x": samebits.replica.Equal()}
        >>> samebits.replica.analyze(captured, declared).is_replica_equal("output")
        True
    """


@dataclass(frozen=True)
class PerReplica:
    """Other bits on every rank, or unknown.

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> declared = {"x": samebits.replica.PerReplica()}
        >>> samebits.replica.analyze(captured, declared).partition("output")
        ((0,), (1,), (2,), (3,))
    """


@dataclass(frozen=True, init=False)
class Partition:
    """The same bits within each of `groups`; a rank in none of them is alone.

    Partition([[0, 1], [2, 3]])

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> declared = {"x": samebits.replica.Partition([[0, 1], [2, 3]])}
        >>> samebits.replica.analyze(captured, declared).partition("output")
        ((0, 1), (2, 3))
    """

    groups: Groups

    def __init__(self, groups: Iterable[Iterable[int]]) -> None:
        try:
            object.__setattr__(self, "groups", tuple(map(tuple, groups)))
        except TypeError:
            raise InvalidArgumentError(
                f"Partition({groups!r}): give groups of ranks, as in Partition([[0, 1], [2, 3]])."
            ) from None


Declaration = Equal | PerReplica | Partition


def partition_number(declaration: Declaration, partitions: Partitions) -> int:
    """Returns the partition of a declaration.

    Raises InvalidArgumentError for what is none, overlapping groups, and ranks that do not exist.
    """
    match declaration:
        case Equal():
            return partitions.equal
        case PerReplica():
            return partitions.distinct
        case Partition(groups=groups):
            return partitions.from_groups(groups)
        case _:
            raise InvalidArgumentError(
                f"analyze: an input is declared Equal(), PerReplica() or Partition([[0, 1], [2, 3]]), not "
                f"{declaration!r}."
            )
