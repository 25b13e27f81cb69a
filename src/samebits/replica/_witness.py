"""A check at run time: values that were claimed equal are compared over the ranks, bit by bit.

A graph does not show how variables were loaded, what C++ reducers do, or whether a kernel keeps its promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.tensor import DTensor

from samebits import _digest as digest
from samebits._context import Observer, Position, observed
from samebits.errors import InvalidArgumentError, ReplicaDriftError
from samebits.replica._capture.captured_step import describe
from samebits.replica._capture.lifting import LiftedArguments
from samebits.replica._capture.per_rank import replica_groups
from samebits.replica._report.report import Report, check_report

_GIVE = "Give modules and optimizers by name, Witness({'model': model, 'optimizer': sgd}), or a Run."


class _WitnessedValue(NamedTuple):
    """One value on this rank."""

    name: str
    label: int
    """The lowest rank of those that hold the same bits, as claimed."""
    alone: bool
    everywhere: bool
    hashed: int


class Witness(Observer):
    """Compares digests of parameters, buffers and optimizer state over the ranks, at every `every`-th step:

        with samebits.Run("runs/a", model=ddp, opt=opt) as run, replica.Witness(run, every=100):

    and once more at the end of the block, which all ranks must leave alike; not after an error. Without a
    `Run`: `Witness({"model": ddp, "optimizer": optimizer})`, and `witness.check(step)` where all ranks are at
    the same step. Every rank makes the witness, which opens its own gloo group. One process compares nothing.

    Claimed equal are all values, or those that `report` claims for the end of a step; of a DTensor, each
    shard over the ranks that replicate it. `ignore`: patterns of names, such as `model.*.running_*`, which
    differ between two steps of DDP.

    Raises:
        InvalidArgumentError: there is nothing to compare, `every` is below 1, the report is of another number
            of ranks, or names none of the values, or an optimizer trains a parameter of no module.
        ReplicaDriftError: by a check, on all ranks: a value that was claimed equal is not.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run(None, model=torch.nn.Linear(2, 1)) as run, samebits.replica.Witness(run):
        ...     for step, batch in run.steps([1, 2, 3]):  # several processes compare before each step
        ...         pass
        >>> samebits.replica.Witness({"step": 3})
        Traceback (most recent call last):
            ...
        samebits.errors.InvalidArgumentError: Witness: there is nothing to compare: ...
    """

    def __init__(
        self, run: Any, every: int = 1, *, report: Report | None = None, ignore: Sequence[str] = ()
    ) -> None:
        if not isinstance(every, int) or every < 1:
            wrong = every if isinstance(every, int) else describe(every)
            raise InvalidArgumentError(
                f"Witness(every={wrong}): a number of steps, at least 1; a report is report=report."
            )
        if isinstance(ignore, str):
            raise InvalidArgumentError(
                f"Witness(ignore={ignore!r}): give a list of patterns, ignore=[{ignore!r}]."
            )
        if report is not None:
            check_report("Witness(report=report)", report)
        self._run, self._every, self._ignore = run, every, tuple(ignore)
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._claims = None if report is None else _claims(report, self._ranks)
        names = [name for name, _ in self._tensors()]
        if not names:
            left = f" that ignore={list(ignore)} leaves" if ignore else ""
            raise InvalidArgumentError(
                f"Witness: there is nothing to compare: no parameter, buffer or optimizer state{left}. "
                f"{_GIVE}"
            )
        if self._claims is not None and not any(_unwrapped_name(name) in self._claims for name in names):
            raise InvalidArgumentError(
                f"Witness: the report names none of the values: they are {', '.join(names[:4])}, ..., and it "
                f"has {', '.join(list(self._claims)[:4])}, ...; call the step's arguments as the objects are "
                "called."
            )
        self._group = dist.new_group(backend="gloo") if self._ranks > 1 else None
        self._held: int | None = None
        self._last: int | None = None
        """The step before the last boundary; None before the first, and after the check at the end."""
        self._subscribed: Any = None

    def __enter__(self) -> Self:
        self._subscribed = observed(self)
        self._subscribed.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._subscribed is not None:
            self._subscribed.__exit__(*error)
            self._subscribed = None
        if error[0] is None and self._last is not None:  # after an error on one rank the others would wait
            last, self._last = self._last, None
            self.check(last)

    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        if run is self._run:
            self._last = step.step
            if step.step % self._every == 0:
                self.check(step.step)

    def check(self, step: int) -> None:
        """Compares the values now, by one all_gather of 32 bytes per rank; two if claims are over some ranks.

        Raises ReplicaDriftError on all ranks, with the first value that differs, the ranks, and the step.
        """
        if self._ranks == 1:
            return
        seen = list(self._values())
        shared = [one for one in seen if one.everywhere]
        names = "".join(f"{one.name}:{one.everywhere};" for one in seen).encode()
        summary = [
            step,
            _signed(xxhash.xxh3_64_intdigest(names)),
            _hash(shared),
            int(len(shared) < len(seen)),
        ]
        of_ranks = self._all_gather([summary])[:, 0]
        for column, what in ((0, "are at other steps"), (1, "have values of other names")):
            if len(set(of_ranks[:, column].tolist())) > 1:
                raise ReplicaDriftError(
                    f"Witness.check({step}): the ranks {what}: {of_ranks[:, column].tolist()}. "
                    "Check on all ranks at the same step, with the same objects."
                )
        if bool(of_ranks[:, 3].any()) or len(set(of_ranks[:, 2].tolist())) > 1:
            self._compare(step, seen)
        self._held = step

    def _compare(self, step: int, seen: list[_WitnessedValue]) -> None:
        """Gathers every digest, and names the first value with two digests in one class."""
        own = [[self._rank if one.alone else one.label, one.hashed] for one in seen]
        of_ranks = self._all_gather(own).tolist()
        wrong = []
        for index, one in enumerate(seen):
            classes: dict[int, dict[int, list[int]]] = {}
            for rank in range(self._ranks):
                label, hashed = of_ranks[rank][index]
                classes.setdefault(label, {}).setdefault(hashed, []).append(rank)
            wrong += [(one.name, held) for held in classes.values() if len(held) > 1]
        if wrong:
            name, held = wrong[0]
            *others, most = sorted(held.items(), key=lambda item: (len(item[1]), -item[1][0]))
            apart = "; ".join(f"rank {', '.join(map(str, ranks))} holds {_hex(h)}" for h, ranks in others)
            values = len({name for name, _ in wrong})
            before = "at the first check" if self._held is None else f"it was equal at step {self._held}"
            raise ReplicaDriftError(
                f"step {step}: {name} is not the same on all replicas: {apart}; rank "
                f"{', '.join(map(str, most[1]))} holds {_hex(most[0])} ({before}; {values} of {len(seen)} "
                "values differ). samebits.replica.analyze finds the reason, if a graph shows it; else check "
                "how it is loaded, and which numbers each rank draws."
            )

    def _values(self) -> Iterator[_WitnessedValue]:
        for name, tensor in self._tensors():
            members = self._members(name, tensor)
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            alone = len(members) == 1
            hashed = 0 if alone else _signed(digest.leaf(local.detach()))  # not compared
            yield _WitnessedValue(name, min(members), alone, len(members) == self._ranks, hashed)

    def _members(self, name: str, tensor: torch.Tensor) -> set[int]:
        """Returns the ranks that hold the same bits of a value as this one, as claimed."""
        name, own = _unwrapped_name(name), {self._rank}
        claimed = set(range(self._ranks)) if self._claims is None else self._claims.get(name, own)
        return claimed & self._replicas(tensor) if isinstance(tensor, DTensor) else claimed

    def _replicas(self, tensor: DTensor) -> set[int]:
        """Returns the ranks that hold the same shard of a DTensor as this one."""
        return next((set(group) for group in replica_groups(tensor) if self._rank in group), {self._rank})

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        objects: Mapping[str, Any] = getattr(self._run, "objects", self._run)
        if not isinstance(objects, Mapping):
            raise InvalidArgumentError(
                f"Witness: {describe(self._run)} is neither a Run nor objects by name. {_GIVE}"
            )
        kept = {n: o for n, o in objects.items() if isinstance(o, nn.Module | torch.optim.Optimizer)}
        for slot in LiftedArguments(list(kept), tuple(kept.values()), copied=False).slots:
            if not any(fnmatchcase(slot.name, pattern) for pattern in self._ignore):
                yield slot.name, slot.tensor

    def _all_gather(self, numbers: list[list[int]]) -> torch.Tensor:
        own = torch.tensor(numbers, dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(self._ranks)]
        dist.all_gather(found, own, self._group)
        return torch.stack(found)


def _claims(report: Report, ranks: int) -> dict[str, set[int]]:
    """Returns the ranks that hold the bits of each variable together with this one, by its bare name."""
    if report.step.world_size != ranks:
        raise InvalidArgumentError(
            f"Witness: the report is of {report.step.world_size} ranks, there are {ranks}."
        )
    rank = dist.get_rank() if ranks > 1 else 0
    found = {}
    for name, value in report.ends.items():
        labels = report.partitions.labels(value.partition)
        found[_unwrapped_name(name)] = set((labels == labels[rank]).nonzero()[0].tolist())
    return found


def _unwrapped_name(name: str) -> str:
    """Returns a name without the parts that wrappers (DDP, `DataParallel`) add to it."""
    return name.replace(".module.", ".")


def _hash(seen: list[_WitnessedValue]) -> int:
    return _signed(
        xxhash.xxh3_64_intdigest(b"".join(one.hashed.to_bytes(8, "little", signed=True) for one in seen))
    )


def _signed(number: int) -> int:
    """Returns 64 unsigned bits as a signed number, which tensors hold."""
    return number - (number >> 63 << 64)


def _hex(number: int) -> str:
    return f"{number & 0xFFFFFFFFFFFFFFFF:016x}"
