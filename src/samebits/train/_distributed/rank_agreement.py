"""The processes of one run under torch.distributed: one state, one commit, one decision at each boundary.

Rank 0 alone opens the run directory, writes commits and reads them; what the other ranks have differently goes through
it. So a commit is real for all ranks or for none, and no file system need be shared.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from samebits import errors
from samebits._context import Position, process
from samebits._inspect import user_code
from samebits.checkpoint import Manifest
from samebits.checkpoint._rank_states import Encoded, joined, of_rank
from samebits.checkpoint._serialize import pack, unpack
from samebits.errors import RanksError, RunMismatchError, UnimplementedError
from samebits.train._distributed.ddp_buckets import fix_buckets
from samebits.train._distributed.gloo_messages import Wire
from samebits.train._state.seed_check import Origin

INTERVAL = 0.1
"""Seconds between two boundaries at which the ranks ask each other, where steps are shorter."""
MOST_STEPS = 256
"""Steps between two such boundaries at most: a signal waits for as many."""

Opened = tuple[Manifest, dict[str, Any]] | None


@dataclass(frozen=True)
class Decision:
    """What all ranks do at one boundary."""

    commit: bool
    wait: bool = True
    """Whether the run goes on only when that commit is durable."""
    leave: bool = False
    """A rank was told to end (SIGTERM...): all commit this boundary and end."""


_GO_ON = Decision(commit=False, wait=False)


class Wishes(NamedTuple):
    """What this rank knows at a boundary."""

    over: bool
    """The loop ends here."""
    exact: bool
    """A check says that this very step is committed; on all ranks alike."""
    at_step: bool
    """So says the program, of a step that nobody waits for; on all ranks alike."""
    due: Callable[[], bool]
    """Whether it is time for a commit; rank 0 knows."""
    asked: bool
    """`run.commit()` was called on this rank."""
    leave: bool
    """This rank got a signal."""

    @property
    def waits(self) -> bool:
        """Whether a commit is wanted that is durable before the run goes on."""
        return self.over or self.exact or self.asked or self.leave


class Alone:
    """One process: it decides for itself."""

    rank, world_size = 0, 1
    key: tuple[str | int, ...] = ()
    """What a step's keys are folded with, so that ranks draw differently."""

    def open(self, find: Callable[[], Opened], where: str) -> Opened:
        """The newest commit, as `find` reads it, with the state of this rank."""
        found = find()
        return None if found is None else (found[0], of_rank(found[1], 0, 1, where))

    def common_origin(self, mine: Origin) -> Origin:
        """The seed that all ranks go on with: what the program set, or what rank 0 got from the operating system."""
        return mine

    def begin(self, objects: Mapping[str, Any], loader: Any, *, epochs: int, name: str) -> None:
        """Before a loop: the ranks have the same objects and as many batches, and their models' buckets are final."""

    def decide(self, position: Position, wishes: Wishes) -> Decision:
        """Whether to commit at the boundary at `position`."""
        wait = wishes.waits
        if not wait and not wishes.due():
            return _GO_ON
        return Decision(commit=True, wait=wait, leave=wishes.leave)

    def complete(self, state: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """The state to commit, with what the other ranks have differently (on rank 0; elsewhere nobody writes it)."""
        return state

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over the ranks, in their order."""
        return dict(values)

    @contextmanager
    def following(self) -> Iterator[None]:
        """A block that only rank 0 has work in: the others wait for its end, and fail when it fails."""
        yield

    def close(self) -> None:
        """The run is over."""


class Together(Alone):
    """One process of several; all of them call every method, at the same place of the program."""

    def __init__(self) -> None:
        self._wire = Wire()
        self.rank, self.world_size = self._wire.rank, self._wire.world_size
        self.key = ("rank", self.rank)
        self._schedule = _AgreementSchedule()

    def open(self, find: Callable[[], Opened], where: str) -> Opened:
        """Rank 0 finds it, and all get it from there: every rank goes on from the same commit, or none does."""
        doing = f"in opening {where}"
        self._check_alike({"run_dir": where}, doing)
        if self.rank == 0:
            with self._telling(doing):
                found = find()
                if found is not None:  # here, so that all raise what one raises
                    of_rank(found[1], 0, self.world_size, where)
                data = pack(None if found is None else [found[0].to_bytes(), found[1]])
            self._wire.from_first(data, doing)
        else:
            self._hear(doing)
            sent = unpack(self._wire.from_first(b"", doing))
            found = None if sent is None else (Manifest.from_bytes(sent[0]), sent[1])
        if found is None:
            return None
        state = of_rank(found[1], self.rank, self.world_size, where)
        return replace(found[0], environment=state.pop("environment")), state

    def common_origin(self, mine: Origin) -> Origin:
        """Raises `RunMismatchError` when the ranks were given different seeds."""
        facts = {"seeded": mine.seeded, "seed": mine.seed if mine.seeded else None}
        self._check_alike(facts, "in entering the run")
        seed = self._wire.from_first(b"" if self.rank else str(mine.seed).encode(), "in entering the run")
        if not mine.seeded:
            process.seed = int(seed)
        return replace(mine, seed=int(seed))

    def begin(self, objects: Mapping[str, Any], loader: Any, *, epochs: int, name: str) -> None:
        """Raises `RunMismatchError` when the ranks are about to do different things."""
        types = {name: type(thing).__qualname__ for name, thing in sorted(objects.items())}
        facts = {"objects": types, "loop": name, "epochs": epochs, "batches": _length(loader)}
        _warn_of_equal_batches(loader)
        self._check_alike(facts, f"before loop {name!r}")
        _refuse_sharded(objects)
        fix_buckets(objects.values())

    def decide(self, position: Position, wishes: Wishes) -> Decision:
        """At most boundaries nobody asks, and nothing is decided; so a signal or `run.commit()` waits for the next asking.

        Raises `RanksError` when the ranks are not at the same step.
        """
        if not (wishes.exact or wishes.over or wishes.at_step or position.step >= self._schedule.next):
            return Decision(commit=False)
        doing = f"at step {position.step} of loop {position.loop!r}"
        mark = 2 * position.step + wishes.over
        due = self.rank == 0 and wishes.due()
        ahead = self._schedule.ahead(position.step) if self.rank == 0 else 0
        mine = [mark, -mark, wishes.waits, wishes.waits or due, wishes.leave, ahead]
        high, low, wait, commit, leave, ahead = self._wire.largest(mine, doing)
        if high != -low:
            raise self._apart(position, over=wishes.over, doing=doing)
        self._schedule.asked(position.step, ahead)
        return Decision(commit=bool(commit), wait=bool(wait), leave=bool(leave))

    def complete(self, state: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """Each of the others sends what it has differently, found by digests."""
        doing = "in a commit"
        state["environment"] = dict(environment)  # the machines may differ
        mine = Encoded.of(state)
        if len(set(self._wire.all_numbers(mine.digest(), doing))) == 1:
            return joined(state, [{"nodes": "[]", "tensors": {}}] * (self.world_size - 1))
        if self.rank == 0:
            self._wire.from_first(mine.outline().encode(), doing)
            return joined(state, [unpack(part) for part in self._wire.to_first(b"", doing)])
        outline = self._wire.from_first(b"", doing).decode()
        self._wire.to_first(pack(mine.part(outline)), doing)
        return state

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """The same bits on all ranks. Raises `RanksError` when they have other names."""
        own = json.dumps({name: float(value) for name, value in values.items()})
        of_ranks = list(map(json.loads, self._wire.all_texts(own, "in a sum over the ranks")))
        if any(one.keys() != of_ranks[0].keys() for one in of_ranks):
            names = "; ".join(f"rank {rank}: {', '.join(one)}" for rank, one in enumerate(of_ranks))
            raise RanksError(f"the ranks sum other values ({names}). Sum the same names on every rank.")
        return {name: sum(one[name] for one in of_ranks) for name in values}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Raises on all ranks what rank 0 raises."""
        doing = "in a commit"
        if self.rank == 0:
            with self._telling(doing):
                yield
        else:
            yield
            self._hear(doing)

    def close(self) -> None:
        """Lets go of the others, without waiting for them."""
        self._wire.close()

    def _check_alike(self, facts: Mapping[str, Any], doing: str) -> None:
        own = json.dumps({"host": socket.gethostname(), **facts}, default=repr)
        first, *others = map(json.loads, self._wire.all_texts(own, doing))
        for rank, other in enumerate(others, 1):
            for name in facts:
                if name == "run_dir" and other["host"] != first["host"]:
                    continue  # the same folder may be mounted elsewhere; only rank 0 uses it
                if first.get(name) != other.get(name):
                    raise RunMismatchError(
                        f"{doing} the ranks are not alike: {name} is {_short(first.get(name))} on rank 0 and "
                        f"{_short(other.get(name))} on rank {rank}. {_CURES.get(name, 'Run the same program on all ranks.')}"
                    )

    @contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        """Rank 0: tells the others how the block has ended."""
        try:
            yield
        except BaseException as error:
            text = json.dumps([type(error).__name__, str(error)])
            self._wire.from_first(text.encode(), doing)
            raise
        self._wire.from_first(b"", doing)

    def _hear(self, doing: str) -> None:
        """The others: raise what rank 0 has raised."""
        if told := self._wire.from_first(b"", doing):
            name, text = json.loads(told)
            kind = getattr(errors, name, RanksError)
            raise kind(f"rank 0: {text}" if text else f"rank 0 ended {doing} ({name})")

    def _apart(self, position: Position, *, over: bool, doing: str) -> RanksError:
        own = f"{'the end' if over else 'step'} of loop {position.loop!r} at step {position.step}"
        where = self._wire.all_texts(own, doing)
        return RanksError(
            "the ranks have come apart: " + "; ".join(f"rank {rank} is at {text}" for rank, text in enumerate(where))
            + ". Give every rank as many batches (samebits.data.Pipeline shares them out), and decide on values that are "
            "equal on all ranks before run.stop() or break. Nothing was committed."
        )  # fmt: skip


def join() -> Alone:
    """The ranks of torch.distributed, if it is set up and there are several; all of them must come here."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Together() if together else Alone()


class _AgreementSchedule:
    """At which step the ranks ask each other next: rank 0 proposes, all follow."""

    def __init__(self) -> None:
        self.next = 0
        self._last = 0
        self._ahead = 1
        self._at = time.monotonic()

    def ahead(self, step: int) -> int:
        """Steps until the next asking: as many as fit into the interval, at most twice as many as before."""
        now = time.monotonic()
        taken, self._at = (now - self._at) / max(step - self._last, 1), now
        fitting = int(INTERVAL / max(taken, 1e-9))
        return max(1, min(fitting, 2 * self._ahead, MOST_STEPS))

    def asked(self, step: int, ahead: int) -> None:
        """All ranks have asked at `step`, and have heard when to ask again."""
        self._last, self._ahead, self.next = step, ahead, step + ahead


_CURES = {
    "seed": "Call samebits.set_random_seed with one seed on all ranks; what the loop's body draws differs by rank all the same.",
    "seeded": "Call samebits.set_random_seed(seed) on all ranks.",
    "run_dir": "Give all ranks the same directory: rank 0 writes the commits of all.",
    "objects": "Give Run the same objects on all ranks.",
    "batches": "Give every rank as many batches: samebits.data.Pipeline shares them out, "
    "torch's DistributedSampler too.",
}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _refuse_sharded(objects: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        parameters = thing.parameters() if isinstance(thing, torch.nn.Module) else ()
        if any(type(parameter).__name__ == "DTensor" for parameter in parameters):
            raise UnimplementedError(
                f"Run({name}=...): its parameters are sharded over the ranks (FSDP, tensor parallelism), which commits do not "
                "hold so far. Use DistributedDataParallel."
            )


def _warn_of_equal_batches(loader: Any) -> None:
    if isinstance(loader, DataLoader) and type(loader.sampler) in (RandomSampler, SequentialSampler):
        user_code.warn(
            "Run.steps: this DataLoader gives every rank all of the data, in the same order, so that the ranks compute the "
            "same. Pass sampler=torch.utils.data.DistributedSampler(dataset), or read a samebits.data.Pipeline, which "
            "shares each batch out.",
        )


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
