"""The batches of a loop: a samebits loader is set to any position at once, any other iterable is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from torch.utils.data import DataLoader

from samebits._context import Position, Words, process
from samebits._inspect import user_code
from samebits._objects import rng_states
from samebits.data._options import OwnShards
from samebits.data._resumable import Resumable
from samebits.determinism._guards import loader_order
from samebits.errors import EmptyDatasetError, InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states
from samebits.train._loop.accelerate_loader import prepared
from samebits.train._loop.loader_objects import LoaderObjects, States
from samebits.train._object_states import Stateful
from samebits.train._run_arguments import check_iterable

INFINITE = 2**62
_END = object()
_SEQUENCES = (list, tuple, range)
_WITHOUT_DRAWS = (Resumable, *_SEQUENCES)
"""Loaders and pipelines of samebits, and iterables that draw nothing."""


@dataclass
class _EpochUnderWay:
    """An epoch that is being read."""

    iterator: Iterator[Any]
    length: int | None
    """Batches of the epoch, of a torch loader; None if unknown: then one is read ahead."""
    began_with: Any
    """The state of a loader that is none of samebits, at the begin."""
    objects: States
    """The states of objects at the begin."""
    ahead: tuple[Any] | None = None
    """The batch that was read ahead, and the state of a samebits loader before it."""
    before_ahead: Any = None


class BatchSource:
    """The batches of one loop. `epoch` and `batch_index` are kept by the loop.

    `inside`: the position of the first batch of a loop inside the body of a step. Such a loop is keyed by
    that position, not by earlier reads, and no epoch of its loader counts.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        key: Words,
        batches_per_epoch: int | None,
        call: str = "Run.steps",
        inside: Position | None = None,
        objects: Mapping[str, Stateful] = MappingProxyType({}),
        shards: OwnShards | None = None,
        every: tuple[int, int] | None = None,
    ) -> None:
        """`objects`: those of the run; some may be parts of the loader.

        `shards`: those of each batch that are read. `every`: (first, step), the batches that are read.
        """
        self._every = every
        self._read_as = {"shards": shards, "every": every} if shards or every else {}
        self._prepared = prepared(loader)
        self._loader: Any = loader if self._prepared is None else self._prepared.batches
        loader_order.keep(self._loader)
        self._key = key
        self.limit = batches_per_epoch
        self._call, self._inside = call, inside
        self._objects = LoaderObjects(objects, self._loader)
        self._resumed_at: tuple[States, States] | None = None
        """Where the run resumes: the states of objects at the epoch's begin, and those of the commit, until
        the epoch is read again."""
        self._reading: _EpochUnderWay | None = None
        """None between two epochs."""
        self.rolled = 0
        """Rolling digest of the epoch's batches up to the last one, if the loader keeps one."""
        self._gave_last = False
        self._forget_iteration()  # an earlier iteration of the user's, who read a first batch, say

    @property
    def ordinal(self) -> int | None:
        """The number of the loader among those that the program has made; None for one of torch's."""
        return self._loader._ordinal if isinstance(self._loader, Resumable) else None

    def state(self) -> Any:
        """Returns the state of the loader for a commit, plain values and tensors."""
        reading = self._reading
        if not isinstance(self._loader, Resumable):
            state = _loader_state(self._loader) if reading is None else reading.began_with
        elif reading is None or reading.ahead is None:
            state = self._loader.state_dict()
        else:
            state = reading.before_ahead
        return state if reading is None or not reading.objects else {**state, "objects": reading.objects}

    def load(self, state: Any, batch_index: int) -> None:
        self._resumed_at = (state.get("objects", {}), self._objects.take()) if batch_index else None
        if isinstance(self._loader, Resumable):
            self._loader.load_state_dict(state)
            return
        _load_loader_state(self._loader, state)
        if self._resumed_at is not None:
            self._objects.restore(self._resumed_at[1])  # the loader may be one of them
        if batch_index and type(self._loader) not in _SEQUENCES:
            user_code.warn(
                f"resuming replays {batch_index} batches of {type(self._loader).__name__}; "
                "samebits.data.DataLoader (same arguments) resumes at once and for any number of workers"
            )

    def continue_after(self, state: Any) -> None:
        """Continues where a loop that is over has ended: nothing of it is checked again."""
        if isinstance(self._loader, Resumable):
            self._loader._continue_after(state)
        else:
            _load_loader_state(self._loader, state)

    def numbers(self, start: int) -> range:
        """Returns the numbers of the batches of a pass, from `start` on, that `next` gives."""
        if self._every is None or not isinstance(self._loader, Resumable):
            return range(start, INFINITE)
        known = length(self._loader)
        return range(self._every[0], INFINITE if known is None else known, self._every[1])

    def is_own(self, number: int) -> bool:
        """Returns True for a batch that is this process's, of a validation that ranks share."""
        return self._every is None or number % self._every[1] == self._every[0]

    def set_position(self, position: Position) -> None:
        """Sets the position of the next batch in the run; one inside a body notes where its epoch began."""
        if self._inside is not None:
            self._inside = position._replace(batch_index=0, step=position.step - position.batch_index)

    def replay(self, epoch: int, batch_index: int) -> None:
        """Reads the epoch again up to this batch, where that gives all objects the state of the commit."""
        if self._resumed_at is not None and not isinstance(self._loader, Resumable) and not self._reads_ahead:
            self._reading = self._begin(epoch, batch_index)

    @property
    def _reads_ahead(self) -> bool:
        return bool(getattr(self._loader, "num_workers", 0)) or length(self._loader) is None

    def next(self, epoch: int, batch_index: int) -> tuple[Any, bool]:
        """Returns batch `batch_index` of `epoch`, and True if it is the epoch's last."""
        if self._reading is None:
            self._reading = self._begin(epoch, batch_index)
        batch, ends = self._read(self._reading, epoch, batch_index)
        self.rolled = self._loader._rolling_digest if isinstance(self._loader, Resumable) else 0
        if self._prepared is not None:
            batch, self._gave_last = self._prepared.hand_out(batch, last=ends), ends
        if ends:
            self.leave_epoch()
        return batch, ends

    def end_body(self) -> None:
        """Notes that the body of the batch that came last is over."""
        if self._gave_last and self._prepared is not None:
            self._prepared.end()
        self._gave_last = False

    def _begin(self, epoch: int, batch_index: int) -> _EpochUnderWay:
        if self._prepared is not None:
            self._prepared.begin(epoch)
        loader, began_with, objects = self._loader, None, States()
        if isinstance(loader, Resumable) and self._inside is not None:
            with loader._reading_as(self._read_as):
                iterator: Iterator[Any] = loader._iter_at(self._inside, batch_index)
        else:
            objects, give_back = self._begin_objects()
            if isinstance(loader, Resumable):
                iterator = self._begin_resumable(loader, give_back)
            else:
                began_with = _loader_state(loader)
                iterator = self._begin_iterable(epoch, batch_index, give_back)
        return _EpochUnderWay(iterator, length(loader), began_with, objects)

    def _begin_resumable(self, loader: Any, give_back: Callable[[], None] | None) -> Iterator[Any]:
        if give_back is not None:
            vars(loader)["_replayed"] = give_back
        with loader._reading_as(self._read_as):
            iterator = iter(loader)
        vars(loader).pop("_replayed", None)
        loader._is_state = False  # its position is that of this loop, whoever reads it besides
        return iterator

    def _begin_iterable(
        self, epoch: int, batch_index: int, give_back: Callable[[], None] | None
    ) -> Iterator[Any]:
        """Returns the iterator of a loader that is none of samebits, read up to this batch."""
        iterator = self._seeded(partial(iter, self._loader), epoch, "epoch", epoch)
        if type(self._loader) in _SEQUENCES:
            return islice(iterator, batch_index, None)
        try:
            for replayed in range(batch_index):
                self._draw(iterator, epoch, replayed)
        finally:
            if give_back is not None:
                give_back()
        return iterator

    def _begin_objects(self) -> tuple[States, Callable[[], None] | None]:
        """Returns the states of objects at an epoch's begin; of one that is read again, its end, too."""
        resumed, self._resumed_at = self._resumed_at, None
        if resumed is None:
            return self._objects.take(), None
        begin, committed = resumed
        if not begin:
            return begin, None
        return begin, self._objects.begin_again(begin, committed, ahead=self._reads_ahead)

    def _read(self, reading: _EpochUnderWay, epoch: int, batch_index: int) -> tuple[Any, bool]:
        ahead, reading.ahead = reading.ahead, None
        batch = ahead[0] if ahead else self._draw(reading.iterator, epoch, batch_index)
        if batch is _END:
            raise EmptyDatasetError(
                f"{self._call}: epoch {epoch} of {type(self._loader).__name__} has no batch. Is the dataset "
                "empty, smaller than a batch with drop_last=True, or an iterator that can be read only once?"
            )
        if self.limit is not None and batch_index + 1 >= self.limit:
            return batch, True
        # a list may grow while it is read
        known = reading.length if isinstance(self._loader, DataLoader) else length(self._loader)
        if known is not None:
            step = self._every[1] if self._every and isinstance(self._loader, Resumable) else 1
            return batch, batch_index + step >= known
        if isinstance(self._loader, Resumable):
            reading.before_ahead = self._loader.state_dict()
        following = self._draw(reading.iterator, epoch, batch_index + 1)
        reading.ahead = (following,)
        return batch, following is _END

    def _draw(self, iterator: Iterator[Any], epoch: int, batch_index: int) -> Any:
        if isinstance(self._loader, _WITHOUT_DRAWS):
            return next(iterator, _END)
        return self._seeded(partial(next, iterator, _END), epoch, "batch", epoch, batch_index)

    def _seeded(self, read: Callable[[], Any], epoch: int, *path: int | str) -> Any:
        """Returns `read()`; the draws of the iterable, or a samebits loader inside, follow the position."""
        # the step that follows, or the end of the loop, sets the generators anew; a body goes on with its own
        discarded = self._inside is None
        with generator_states.DISCARD_STATES if discarded else generator_states.preserve_states():
            generator_states.fill(int_keys.fold(self._key, *path))
            process.position = self._inside or Position("loader", epoch, 0, epoch)
            try:
                return read()
            finally:
                process.position = None

    def finish(self) -> Any:
        """Releases the iterator at the end of the loop; returns the state of the loader."""
        self.leave_epoch()
        return self.state()

    def leave_epoch(self) -> None:
        """Releases the iterator, even with batches left: the loader is at the start of the next epoch."""
        self._reading = None
        self._forget_iteration()

    def _forget_iteration(self) -> None:
        """Forgets the loader's iteration, unless it may be one that counts: that of the outer loop, say."""
        if self._inside is None and isinstance(self._loader, Resumable):
            self._loader._forget_iteration()


def check_loader(loader: Any, call: str = "Run.steps") -> None:
    """Raises when `loader` cannot be iterated once per epoch."""
    if (known := prepared(loader)) is not None:
        loader = known.batches
    check_iterable(loader, f"{call}(loader")
    if hasattr(loader, "__next__"):
        raise InvalidArgumentError(
            f"{call}(loader={type(loader).__name__}): an iterator can be read only once, so it cannot be "
            "resumed. Pass what it was made of: a samebits.data.DataLoader, a list, or any object whose "
            "__iter__ starts anew."
        )
    if getattr(loader, "persistent_workers", False) and not isinstance(loader, Resumable):
        raise UnimplementedError(
            f"{call}: torch's DataLoader with persistent_workers=True keeps generators in its workers from "
            "epoch to epoch, which cannot be saved. Use samebits.data.DataLoader (same arguments)."
        )


def length(loader: Any) -> int | None:
    """Returns the number of batches of a pass over `loader`; None if it is unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def keeps_state(loader: Any) -> bool:
    """Returns True for an iterable whose own state goes on from epoch to epoch: generators, a state_dict."""
    if (known := prepared(loader)) is not None:
        loader = known.batches
    has_state = hasattr(loader, "state_dict") or bool(rng_states.of_loader(loader))
    return has_state and not isinstance(loader, Resumable)


def _loader_state(loader: Any) -> dict[str, Any]:
    return {
        "own": _custom_state(loader),
        "generators": [generator.get_state() for generator in rng_states.of_loader(loader)],
    }


def _custom_state(loader: Any) -> Any:
    """Returns the loader's own state; None, so that its epoch is replayed, where it cannot return one.

    Accelerate's loaders always have the method and call that of the wrapped loader, which may have none.
    """
    try:
        return loader.state_dict() if hasattr(loader, "state_dict") else None
    except (AttributeError, NotImplementedError):
        return None
    except Exception as error:
        user_code.warn(
            f"{type(loader).__name__}.state_dict() raised {type(error).__name__}: {error}. Its state is not "
            "saved: a resume replays the epoch."
        )
        return None


def _load_loader_state(loader: Any, state: Any) -> None:
    generators_now = rng_states.of_loader(loader)
    if len(generators_now) != len(state["generators"]):
        raise UnimplementedError(
            f"resuming: {type(loader).__name__} had {len(state['generators'])} generators when the commit "
            f"was made and has {len(generators_now)} now: its sampler makes them while it is read, as "
            "Accelerate's does with use_seedable_sampler=True. Use a sampler that has its generator from the "
            "start, or samebits.data.DataLoader (same arguments)."
        )
    if state["own"] is not None:
        loader.load_state_dict(state["own"])
    for generator, saved in zip(generators_now, state["generators"], strict=True):
        generator.set_state(saved)
