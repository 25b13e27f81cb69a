"""Pipelines and loaders: each stage and source, read with and without workers, and resumed. The same on every CPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import samebits
from samebits.data import DataLoader, Pipeline, check

ITEMS = [3 * number % 41 for number in range(41)]
Facts = Iterator[tuple[str, Any]]


def augment(x: int) -> list[int]:
    """Draws from the generators of torch, NumPy and Python; integers, which every CPU draws alike."""
    return [int(x), int(torch.randint(1000, ())), int(np.random.randint(1000)), random.randrange(1000)]


def with_rng(x: int, rng: np.random.Generator) -> tuple[int, int]:
    """Draws from a generator of its own."""
    return int(x), int(rng.integers(1000))


def with_key(x: int, key: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Draws from a key."""
    return int(x), samebits.random.bits(key, 3)


def rows_with_key(x: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
    """A key for each row."""
    return [x, samebits.random.bits(key[:, None], len(x), 2)]


def source() -> Pipeline:
    """41 numbers."""
    return Pipeline.from_source(ITEMS)


def stream() -> Pipeline:
    """The same, which can only be read in order."""
    return Pipeline.from_iterable(lambda: iter(ITEMS))


def ragged(p: Pipeline) -> Pipeline:
    """Sequences of 1 to 7 numbers."""
    return p.map(lambda x: torch.arange(x % 7 + 1))


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "from_source": source,
    "from_iterable": stream,
    "range": lambda: Pipeline.range(3, 50, 4),
    "random": lambda: Pipeline.random(7).take(30),
    "map": lambda: source().map(augment),
    "map.rng": lambda: source().map(with_rng),
    "map.key": lambda: source().map(with_key),
    "map.twice": lambda: source().map(augment).map(lambda x: [*x, random.randrange(9)]),
    "map_batches": lambda: source().batch(8).map_batches(rows_with_key),
    "map_batches.shuffled": lambda: source().shuffle().batch(8).map_batches(rows_with_key),
    "filter": lambda: source().map(augment).filter(lambda x: x[1] % 3 != 0),
    "flat_map": lambda: source().map(augment).flat_map(lambda x: x[: x[0] % 4 + 1]),
    "interleave": lambda: Pipeline.range(9).interleave(lambda x: Pipeline.range(x, x + 5).map(augment), 3, 2),
    "shuffle": lambda: source().shuffle(),
    "shuffle.kept": lambda: source().shuffle(reshuffle_each_epoch=False),
    "shuffle.buffer": lambda: source().shuffle(10),
    "shuffle.stream": lambda: stream().shuffle(10).map(augment),
    "repeat": lambda: source().shuffle().repeat(2).map(augment),
    "repeat.stream": lambda: stream().repeat(2),
    "repeat.endless": lambda: source().shuffle().map(augment).repeat().take(100),
    "take": lambda: source().shuffle().take(7),
    "skip": lambda: stream().skip(7).map(augment),
    "shard": lambda: source().shuffle().shard(4, 1),
    "enumerate": lambda: source().shuffle().enumerate(5),
    "enumerate.stream": lambda: stream().enumerate(),
    "zip": lambda: Pipeline.zip(source().shuffle(), stream().map(augment)),
    "concatenate": lambda: source().shuffle().concatenate(Pipeline.range(5).map(augment)),
    "mix": lambda: Pipeline.mix([source().shuffle(), Pipeline.range(100).map(augment)], [2, 1.5]),
    "batch": lambda: source().shuffle().map(augment).batch(8),
    "batch.dropped": lambda: stream().batch(8, drop_remainder=True),
    "padded_batch": lambda: ragged(source().shuffle()).padded_batch(4, padding_value=-1),
    "unbatch": lambda: source().batch(4).unbatch().map(augment),
    "bucket_by_length": lambda: ragged(source().shuffle()).bucket_by_length(len, [2, 5], [4, 3, 2]),
    "pack": lambda: ragged(source().shuffle()).pack(12, open_rows=3),
    "cache": lambda: source().map(augment).cache().shuffle(),
    "cache.stream": lambda: stream().map(augment).cache(),
    "prefetch": lambda: source().map(augment).batch(4).prefetch(3),
    "with_options": lambda: source().shuffle().map(augment).batch(8).with_options(rank=1, world_size=2, remainder="pad"),
    "with_options.drop": lambda: source().batch(8).with_options(rank=1, world_size=2, remainder="drop"),
    "with_options.uneven": lambda: source().batch(8).with_options(rank=0, world_size=2, remainder="uneven"),
}  # fmt: skip
READ = {"as_iterable_dataset", "state_dict", "load_state_dict", "fingerprint"}
"""Public methods that say something of a pipeline; `_of_pipeline` asks each."""
NOT_DOCUMENTED = {"inside", "rolled", "forget_iteration", "endless"}
"""Called by `Run` only; its facts have what they give."""


def pipelines(tree: Path) -> Facts:
    """Two epochs, in this process, with two workers, and resumed after 5 elements; the state and the fingerprint."""
    _complete(Pipeline, {name.split(".")[0] for name in PIPELINES} | READ | NOT_DOCUMENTED)
    for name, make in PIPELINES.items():
        yield from _of_pipeline(name, lambda make=make: make().with_options(seed=11))
    samebits.set_random_seed(3)
    yield "process_seed", list(source().shuffle().map(augment))
    yield "another_seed", list(source().shuffle().map(augment).with_options(seed=4))
    threads = source().shuffle().map(with_rng, num_parallel_calls=2, executor="thread")
    yield "threads", list(threads)
    yield "check", check(source().shuffle().map(augment).batch(4), workers=(0, 2))


def _complete(kind: type, covered: set[str]) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    if missing := public - covered:
        raise SystemExit(
            f"golden: no fact for {kind.__name__}.{', '.join(sorted(missing))}: add one to tools/golden/inputs.py"
        )


def _of_pipeline(name: str, make: Callable[[], Pipeline]) -> Facts:
    pipeline = make()
    first, second = list(pipeline), list(pipeline)
    yield f"{name}/epochs", [first, second]
    workers = make().with_options(num_parallel_calls=2)
    yield f"{name}/workers", list(workers)
    if [*map(str, workers_again(make))] != [*map(str, first)]:
        raise SystemExit(f"golden: {name} differs with workers")
    yield f"{name}/fingerprint", make().fingerprint()
    interrupted = make()
    iterator = iter(interrupted)
    begun = list(islice(iterator, 5))
    state = interrupted.state_dict()
    yield f"{name}/state", state
    resumed = make().with_options(num_parallel_calls=2)
    resumed.load_state_dict(state)
    rest = iter(resumed)
    yield f"{name}/resumed", [begun, list(rest), rest.state_dict()]
    yield f"{name}/dataset", list(make().as_iterable_dataset())


def workers_again(make: Callable[[], Pipeline]) -> list[Any]:
    """Read once more with three workers."""
    return list(make().with_options(num_parallel_calls=3))


class Augmented(torch.utils.data.Dataset):
    """A dataset whose elements draw."""

    def __len__(self) -> int:
        return len(ITEMS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(augment(ITEMS[index]))


def drawing_collate(elements: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.stack(elements) + torch.randint(5, ())


LOADERS: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 4},
    "shuffle": {"batch_size": 8, "shuffle": True},
    "drop_last": {"batch_size": 8, "shuffle": True, "drop_last": True},
    "single": {"batch_size": None, "shuffle": True},
    "collate_fn": {"batch_size": 8, "shuffle": True, "collate_fn": drawing_collate},
    "sampler": {"batch_size": 8, "sampler": list(range(30, 3, -2))},
    "batch_sampler": {"batch_sampler": [[1, 2, 3], [3, 1], [7]]},
}
LOADED = {"state_dict", "load_state_dict", "fingerprint"}
INTERNAL = {"inside", "forget_iteration", "position", "state_at"}


def loaders(tree: Path) -> Facts:
    """Two epochs, with two workers, persistent ones, and resumed after 2 batches; the state and the fingerprint."""
    _complete(DataLoader, LOADED | INTERNAL)
    for name, options in LOADERS.items():

        def make(options: dict[str, Any] = options, **more: Any) -> DataLoader:
            return DataLoader(Augmented(), seed=5, **options, **more)

        loader = make()
        yield f"{name}/epochs", [list(loader), list(loader), len(loader)]
        workers = make(num_workers=2)
        yield f"{name}/workers", [list(workers), list(workers)]
        persistent = make(num_workers=2, persistent_workers=True)
        yield f"{name}/persistent", [list(persistent), list(persistent)]
        yield f"{name}/fingerprint", make().fingerprint()
        interrupted = make()
        begun = list(islice(iter(interrupted), 2))
        state = interrupted.state_dict()
        yield f"{name}/state", state
        resumed = make(num_workers=2)
        resumed.load_state_dict(state)
        yield f"{name}/resumed", [begun, list(resumed), list(resumed)]
    samebits.set_random_seed(3)
    yield "process_seed", list(DataLoader(Augmented(), 8, shuffle=True))
    generator = torch.Generator().manual_seed(9)
    yield "generator", list(DataLoader(Augmented(), 8, shuffle=True, generator=generator))


SECTIONS = {"pipelines": pipelines, "loaders": loaders}
