"""The processes of one run under torch.distributed: one state, one commit, one decision at each boundary.

Rank 0 alone opens the run directory, writes commits and reads them; the other ranks send it their
differences. So a commit is real for all ranks or for none, and no file system need be shared.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from samebits import errors
from samebits._context import Position, process
from samebits._dtensors import is_dtensor
from samebits._inspect import user_code
from samebits.checkpoint._commit_parts import RanksReader
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._rank_states import EncodedState, join_states, leaf_hashes, pack, rank_state, unpack
from samebits.distributed._gloo_messages import GlooGroup
from samebits.errors import RanksError, RunMismatchError, UnimplementedError
from samebits.train._committed_state import without_objects
from samebits.train._ddp_buckets import fix_buckets
from samebits.train._environment_check import RunSeed
from samebits.train._loop.accelerate_loader import prepared
from samebits.train._loop.batch_source import length

INTERVAL = 0.1
"""Seconds between two boundaries at which the ranks exchange requests, where steps are shorter."""
MOST_STEPS = 256
"""Steps between two such boundaries at most: a signal waits for as many."""

Opened = tuple[Manifest, dict[str, Any]] | None


class Decision(IntEnum):
    """The decision about one boundary; of several ranks, the largest of theirs counts."""

    CONTINUE = 0
    SNAPSHOT = 1
    """Commits, and continues before the commit is durable."""
    COMMIT = 2
    """Commits, and continues when the commit is durable."""
    LEAVE = 3
    """Commits, and ends: a rank got a signal (SIGTERM...)."""


class SingleProcess:
    """One process, which decides for itself."""

    rank, world_size = 0, 1
    group: GlooGroup | None = None
    shards: int | None = None
    of_rank_zero: frozenset[str] = frozenset()
    key: tuple[str | int, ...] = ()
    """Folded into a step's keys, so that ranks draw differently."""

    def open(self, find: Callable[[], Opened], where: str, reader: RanksReader | None = None) -> Opened:
        """Returns the newest commit, as `find` reads it, with the state of this rank."""
        found = find()
        return None if found is None else (found[0], rank_state(found[1], 0, 1, where))

    def agree_on_seed(self, mine: RunSeed) -> RunSeed:
        """Returns the seed of all ranks: the program's, or rank 0's from the operating system."""
        return mine

    def begin(self, objects: Mapping[str, Any], loader: Any, *, epochs: int, name: str) -> None:
        """Checks before a loop that all ranks have equal objects and as many batches; makes buckets final."""

    def decide(self, position: Position, mine: Decision, *, over: bool, together: bool) -> Decision:
        """Returns the decision of all ranks about the boundary at `position`, from that of this rank.

        `over`: the loop ends here. `together`: all ranks know that they exchange decisions at this step.
        """
        return mine

    def gather_state(self, state: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state to commit, with the other ranks' differences (on rank 0; others write none)."""
        return state

    def sum_over_ranks(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns each value summed over the ranks, in their order."""
        return dict(values)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Enters a block in which only rank 0 works: the others wait for its end, and raise its error."""
        yield

    def close(self) -> None:
        """Ends the communication."""


class Distributed:
    """One process of several; all of them call every method, in the same place of the program."""

    def __init__(self) -> None:
        self._group = self.group = GlooGroup()
        self.rank, self.world_size = self._group.rank, self._group.world_size
        self.key: tuple[str | int, ...] = ("rank", self.rank)
        self.shards: int | None = None
        """The logical shards of a batch, if the run has such: the state is then equal on all ranks."""
        self.of_rank_zero: frozenset[str] = frozenset()
        """The names of objects that only rank 0 calls, whose state is in a commit with shards."""
        self._schedule = _AgreementSchedule()

    def open(self, find: Callable[[], Opened], where: str, reader: RanksReader | None = None) -> Opened:
        """Opens the newest commit on rank 0 and sends it to all: every rank resumes from it, or none does.

        With a `reader` each rank reads its own rows.
        """
        doing = f"in opening {where}"
        self._check_alike({"run_dir": where, "sharded": reader is not None}, doing)
        if reader is not None:
            return reader.open(find)
        if self.rank == 0:
            with self._sharing_errors(doing):
                found = find()
                if found is not None and not is_of_shards(found[0]):
                    # inside the block, so that all ranks raise what one raises
                    rank_state(found[1], 0, self.world_size, where)
                data = pack(None if found is None else [found[0].to_bytes(), found[1]])
            self._group.broadcast(data, doing)
        else:
            self._raise_error_of_rank_zero(doing)
            sent = unpack(self._group.broadcast(b"", doing))
            found = None if sent is None else (Manifest.from_bytes(sent[0]), sent[1])
        if found is None or is_of_shards(found[0]):
            return found
        state = rank_state(found[1], self.rank, self.world_size, where)
        return replace(found[0], environment=state.pop("environment")), state

    def agree_on_seed(self, mine: RunSeed) -> RunSeed:
        """Returns the seed of all ranks. Raises `RunMismatchError` when they have different ones."""
        facts = {"seeded": mine.seeded, "seed": mine.seed if mine.seeded else None}
        self._check_alike(facts, "in entering the run")
        seed = self._group.broadcast(b"" if self.rank else str(mine.seed).encode(), "in entering the run")
        if not mine.seeded:
            process.seed = int(seed)
        return replace(mine, seed=int(seed))

    def begin(self, objects: Mapping[str, Any], loader: Any, *, epochs: int, name: str) -> None:
        """Raises `RunMismatchError` when the ranks are about to run different loops."""
        types = {name: type(thing).__qualname__ for name, thing in sorted(objects.items())}
        facts = {"objects": types, "loop": name, "epochs": epochs, "batches": length(loader)}
        facts["shards"] = self.shards
        if self.shards is None:
            _warn_of_equal_batches(loader)
        self._check_alike(facts, f"before loop {name!r}")
        if self.shards is None:
            _check_not_sharded(objects)
            fix_buckets(objects.values())

    def decide(self, position: Position, mine: Decision, *, over: bool, together: bool) -> Decision:
        """Decides with the other ranks, at few boundaries, where signals and `run.commit()` take effect.

        Raises `RanksError` when the ranks are not at the same step.
        """
        if not (over or together or position.step >= self._schedule.next):
            return Decision.CONTINUE
        if self.rank and mine is Decision.SNAPSHOT:  # rank 0 knows when one is due
            mine = Decision.CONTINUE
        doing = f"at step {position.step} of loop {position.loop!r}"
        mark = 2 * position.step + over
        ahead = self._schedule.steps_ahead(position.step) if self.rank == 0 else 0
        high, low, decision, ahead = self._group.max_over_ranks([mark, -mark, mine, ahead], doing)
        if high != -low:
            raise self._out_of_step_error(position, over=over, doing=doing)
        self._schedule.update(position.step, ahead)
        return Decision(decision)

    def gather_state(self, state: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """Sends the differences of each other rank to rank 0; digests find them."""
        doing = "in a commit"
        compared = state
        if self.shards is None:
            state["environment"] = dict(environment)  # the machines may differ
        elif self.of_rank_zero:
            compared = without_objects(state, self.of_rank_zero)
        mine = EncodedState.of(compared)
        equal = len(set(self._group.gather_numbers(mine.digest(), doing))) == 1
        if self.shards is not None:
            if not equal:
                self._raise_difference(compared, doing)
            return state
        if equal:
            return join_states(state, [{"nodes": "[]", "tensors": {}}] * (self.world_size - 1))
        if self.rank == 0:
            self._group.broadcast(mine.outline().encode(), doing)
            return join_states(state, [unpack(part) for part in self._group.gather(b"", doing)])
        outline = self._group.broadcast(b"", doing).decode()
        self._group.gather(pack(mine.difference(outline)), doing)
        return state

    def _raise_difference(self, state: Mapping[str, Any], doing: str) -> NoReturn:
        """Raises `RanksError` on all ranks for the first of them whose state is not that of rank 0."""
        own = leaf_hashes(state)
        first = json.loads(self._group.broadcast(json.dumps(own).encode(), doing))
        paths = [path for path in own | first if own.get(path) != first.get(path)]
        # one of each object, and what a program has computed itself first
        by_object = {tuple(path.split(".")[:2]): path.removeprefix("objects.") for path in reversed(paths)}
        differing = sorted(by_object.values(), key=lambda path: not path.startswith("run_state"))
        for rank, names in enumerate(self._group.gather_values(differing, doing)):
            if names:
                raise RanksError(
                    f"a commit of a run with shards={self.shards} is that of any number of processes, so its "
                    f"state must be equal on all ranks, and rank {rank} has another value than rank 0 in "
                    f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}. Compute it from all shards: "
                    "shards.sum(values), or batches.sum(values) for batches = run.validate(...). Weights "
                    "that differ were updated by a gradient that no backward in the loop over the shards "
                    "gave. Nothing was committed."
                )
        raise RanksError(
            f"{doing} the states of the ranks have equal values in other types (a list, a tuple), or share "
            "other objects. Make them alike on all ranks. Nothing was committed."
        )

    def sum_over_ranks(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns the sums, with the same bits on all ranks. Raises `RanksError` when their names differ."""
        own = json.dumps({name: float(value) for name, value in values.items()})
        of_ranks = list(map(json.loads, self._group.gather_texts(own, "in a sum over the ranks")))
        if any(one.keys() != of_ranks[0].keys() for one in of_ranks):
            names = "; ".join(f"rank {rank}: {', '.join(one)}" for rank, one in enumerate(of_ranks))
            raise RanksError(f"the ranks sum other values ({names}). Sum the same names on every rank.")
        return {name: sum(one[name] for one in of_ranks) for name in values}

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Raises an error of rank 0 in the block on all ranks."""
        doing = "in a commit"
        if self.rank == 0:
            with self._sharing_errors(doing):
                yield
        else:
            yield
            self._raise_error_of_rank_zero(doing)

    def close(self) -> None:
        """Closes the connections without waiting for the others."""
        self._group.close()

    def _check_alike(self, facts: Mapping[str, Any], doing: str) -> None:
        own = json.dumps({"host": socket.gethostname(), **facts}, default=repr)
        first, *others = map(json.loads, self._group.gather_texts(own, doing))
        for rank, other in enumerate(others, 1):
            for name in facts:
                if name == "run_dir" and other["host"] != first["host"]:
                    continue  # the same folder may be mounted elsewhere; only rank 0 uses it
                if first.get(name) != other.get(name):
                    raise RunMismatchError(
                        f"{doing} the ranks are not alike: {name} is {_short(first.get(name))} on rank 0 and "
                        f"{_short(other.get(name))} on rank {rank}. "
                        f"{_CURES.get(name, 'Run the same program on all ranks.')}"
                    )

    @contextmanager
    def _sharing_errors(self, doing: str) -> Iterator[None]:
        """Tells the other ranks how the block on rank 0 has ended."""
        try:
            yield
        except BaseException as error:
            text = json.dumps([type(error).__name__, str(error)])
            self._group.broadcast(text.encode(), doing)
            raise
        self._group.broadcast(b"", doing)

    def _raise_error_of_rank_zero(self, doing: str) -> None:
        if error := self._group.broadcast(b"", doing):
            name, text = json.loads(error)
            kind = getattr(errors, name, RanksError)
            raise kind(f"rank 0: {text}" if text else f"rank 0 ended {doing} ({name})")

    def _out_of_step_error(self, position: Position, *, over: bool, doing: str) -> RanksError:
        own = f"{'the end' if over else 'step'} of loop {position.loop!r} at step {position.step}"
        texts = self._group.gather_texts(own, doing)
        where = (f"rank {rank} is at {text}" for rank, text in enumerate(texts))
        return RanksError(
            f"the ranks have come apart: {'; '.join(where)}. Give every rank as many batches "
            "(samebits.data.Pipeline shares them out), and decide on values that are equal on all ranks "
            "before run.stop() or break. Nothing was committed."
        )


Ranks = SingleProcess | Distributed


def check_of_shards(manifest: Manifest, where: str) -> None:
    """Raises `RunMismatchError` for a commit that a program with a sharded model cannot continue."""
    if not is_of_shards(manifest):
        raise RunMismatchError(
            f"{where} was made without shards, so its bits follow the number of processes, and a sharded "
            "model cannot continue it. Use another run directory, and run.steps(loader, shards=S)."
        )


def is_of_shards(manifest: Manifest) -> bool:
    """Returns True for a commit of a run with logical shards, which any number of processes continues."""
    return "shards" in manifest.environment


def join() -> Ranks:
    """Returns the ranks of torch.distributed, if there are several; all of them must call it."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Distributed() if together else SingleProcess()


class _AgreementSchedule:
    """The schedule of the steps at which the ranks exchange requests: rank 0 proposes, all follow."""

    def __init__(self) -> None:
        self.next = 0
        self._last = 0
        self._ahead = 1
        self._at = time.monotonic()

    def steps_ahead(self, step: int) -> int:
        """Returns the steps until the next exchange: those of the interval, at most twice those before."""
        now = time.monotonic()
        taken, self._at = (now - self._at) / max(step - self._last, 1), now
        fitting = int(INTERVAL / max(taken, 1e-9))
        return max(1, min(fitting, 2 * self._ahead, MOST_STEPS))

    def update(self, step: int, ahead: int) -> None:
        """Notes that all ranks have exchanged requests at `step`, and the steps until the next exchange."""
        self._last, self._ahead, self.next = step, ahead, step + ahead


_CURES = {
    "seed": "Call samebits.set_random_seed with one seed on all ranks; what the loop's body draws differs by "
    "rank all the same.",
    "seeded": "Call samebits.set_random_seed(seed) on all ranks.",
    "run_dir": "Give all ranks the same directory: rank 0 writes the commits of all.",
    "sharded": "Call fully_shard on all ranks, before the Run.",
    "objects": "Give Run the same objects on all ranks.",
    "shards": "Give all ranks the same number of shards.",
    "batches": "Give every rank as many batches: samebits.data.Pipeline shares them out, "
    "torch's DistributedSampler too.",
}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _check_not_sharded(objects: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        parameters = thing.parameters() if isinstance(thing, torch.nn.Module) else ()
        if any(map(is_dtensor, parameters)):
            raise UnimplementedError(
                f"Run({name}=...): its parameters are sharded over the ranks (FSDP, tensor parallelism), and "
                "without shards the bits would follow the number of ranks. Call run.steps(loader, shards=S)."
            )


def _warn_of_equal_batches(loader: Any) -> None:
    is_fitting = isinstance(loader, DataLoader) and type(loader.sampler) in (RandomSampler, SequentialSampler)
    if prepared(loader) is None and is_fitting:
        user_code.warn(
            "Run.steps: this DataLoader gives every rank all of the data, in the same order, so that the "
            "ranks compute the same. Pass sampler=torch.utils.data.DistributedSampler(dataset), or read a "
            "samebits.data.Pipeline, which shares each batch out."
        )
