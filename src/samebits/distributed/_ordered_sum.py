"""Gradients added in the order of logical shards: what one process computes by one backward after the other.

Rank r of W has the shards r, r + W, ..., so shards come in rounds of W. In each round one all-to-all of a
bucket sends to each rank its slice of the gradients of the round; the rank adds them, in the order of shards
and in their own type, to its running sum of the slice. One all-gather of the slices ends the pass. A
parameter that a shard has not used counts as -0.0, the neutral element of IEEE 754's addition (0.0 is not:
0.0 + -0.0 is 0.0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from typing_extensions import override

from samebits._dtensors import is_dtensor, local
from samebits.distributed._gloo_messages import GlooGroup
from samebits.distributed._slice_messages import DOING, SliceMessages, added_slices
from samebits.errors import InvalidArgumentError, UnimplementedError

BUCKET = 1 << 21
"""Bytes of a bucket, at least; the last one, and that of a large parameter, may have another size."""
IN_FLIGHT = 16
"""Buckets under way at a time, at most: they take, with what comes, as much as two or three of DDP's. So a
rank may be rounds ahead of another."""

Gradients = dict[int, torch.Tensor]
"""By the number of the parameter."""


@dataclass(eq=False)
class GradientBucket:
    """Parameters of one dtype and device that are sent together; `piece` elements are one rank's slice."""

    numbers: list[int]
    sizes: list[int]
    shapes: list[torch.Size]
    dtype: torch.dtype
    device: torch.device
    piece: int
    total: torch.Tensor | None = None
    """The running sum of this rank's slice."""
    missing: set[int] = field(default_factory=set)
    """The parameters whose gradient has not come in this shard."""

    def pack(self, gradients: Gradients, flat: torch.Tensor) -> torch.Tensor:
        """Returns `flat` with the gradients side by side, by each one's indices; -0.0 where there is none."""
        given = [gradients.pop(number, None) for number in self.numbers]
        *places, rest = flat.split([*self.sizes, flat.numel() - sum(self.sizes)])
        filled = [
            (at.view(s), g) for at, s, g in zip(places, self.shapes, given, strict=True) if g is not None
        ]
        if filled:
            torch._foreach_copy_([place for place, _ in filled], [gradient for _, gradient in filled])
        for place, gradient in zip([*places, rest], [*given, None], strict=True):
            if gradient is None:
                _fill_neutral(place)
        return flat

    def add(self, parts: Iterable[torch.Tensor]) -> None:
        """Adds slices to the running sum, in their order."""
        self.total = added_slices(self.total, parts)


class _SpareMemory:
    """The memory of buckets that have arrived, for the next ones: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, torch.device], list[torch.Tensor]] = defaultdict(list)

    def take(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns an uninitialised tensor of `count` elements."""
        size = -(-count * dtype.itemsize // BUCKET) * BUCKET
        spare = self._spare[size, device]
        memory = spare.pop() if spare else torch.empty(size, dtype=torch.uint8, device=device)
        return memory[: count * dtype.itemsize].view(dtype)

    def put(self, *tensors: torch.Tensor) -> None:
        """Takes back what `take` has returned."""
        for tensor in tensors:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            spare = self._spare[len(memory), tensor.device]
            if 0 < len(memory) <= 4 * BUCKET and len(spare) < IN_FLIGHT:
                spare.append(memory)


class _Sent(NamedTuple):
    """A bucket under way."""

    bucket: GradientBucket
    flat: torch.Tensor
    received: torch.Tensor
    parts: list[torch.Tensor]
    """The slices of the ranks that have a shard in its round: one of `flat`, the others of `received`."""
    is_last: bool
    """True in the last round."""
    works: list[dist.Work]


class GradientSum(ABC):
    """The gradients of one loop with shards; of several ranks all call every method."""

    def __init__(self) -> None:
        self._parameters: list[tuple[str, torch.nn.Parameter]] = []
        self._hooks: dict[int, Any] = {}
        self.in_shard = False

    def set_parameters(self, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """Takes the parameters, each with its name, in the order of all ranks."""
        if [id(one) for _, one in parameters] != [id(one) for _, one in self._parameters]:
            self.remove_hooks()
            self._parameters = list(parameters)
        for number, (_, parameter) in enumerate(self._parameters):
            if parameter.requires_grad and number not in self._hooks:  # one may be frozen for a time
                hook = partial(self.came, number)
                self._hooks[number] = parameter.register_post_accumulate_grad_hook(hook)

    @abstractmethod
    def begin_pass(self, number: int) -> None:
        """Begins a loop over the shards; the gradients that are alive are where the sum starts."""

    @abstractmethod
    def begin_round(self) -> None:
        """Begins a round, or this rank's shard of it."""

    @abstractmethod
    def end_round(self) -> None:
        """Ends the round. Raises `InvalidArgumentError` where more than backwards has changed gradients."""

    @abstractmethod
    def end_pass(self, flags: Sequence[int]) -> Sequence[int]:
        """Gives every parameter its gradient; returns the largest of each of `flags` over the ranks."""

    @abstractmethod
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Gives these tensors, which have no gaps, the content that they have on rank 0."""

    @abstractmethod
    def take(self, number: int, parameter: torch.Tensor) -> None:
        """Takes the gradient that a backward has just accumulated in a shard."""

    @abstractmethod
    def close(self) -> None:
        """Removes the hooks, and closes the connections."""

    def came(self, number: int, parameter: torch.Tensor) -> None:
        """Checks and takes the gradient of a parameter that a backward has just accumulated.

        Raises `InvalidArgumentError` outside of a shard, `UnimplementedError` for a sparse one.
        """
        name = self._parameters[number][0]
        if not self.in_shard:
            raise outside_error(name)
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise UnimplementedError(
                f"run.steps(shards=...): the gradient of {name} is sparse, and cannot be sent by slices. "
                "Make its layer with sparse=False."
            )
        self.take(number, parameter)

    def take_before(self) -> Gradients:
        """Returns the gradients that are alive before a pass, and takes them from their parameters."""
        before = {}
        for number, (_, parameter) in enumerate(self._parameters):
            if parameter.grad is not None:
                before[number], parameter.grad = parameter.grad, None
        return before

    def remove_hooks(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()


class OneProcessSum(GradientSum):
    """Those of one process: autograd adds them in the order of shards. It sees that nothing else does."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: list[tuple[torch.Tensor | None, int]] = []
        """Each gradient at the begin of the shard, and torch's count of writes into it."""
        self._came: Counter[int] = Counter()
        """The number of backwards in the shard, by parameter."""

    @override
    def begin_pass(self, number: int) -> None:
        pass

    @override
    def begin_round(self) -> None:
        self._came.clear()
        self._begun = [
            (parameter.grad, 0 if parameter.grad is None else _memory_of(parameter.grad)._version)
            for _, parameter in self._parameters
        ]

    @override
    def end_round(self) -> None:
        writes: Counter[int] = Counter()  # by memory: FSDP2's gradients are views of one tensor for a module
        for number, (_, parameter) in enumerate(self._parameters):
            if parameter.grad is not None:
                writes[id(_memory_of(parameter.grad))] += self._came[number]
        for number, ((before, version), (name, parameter)) in enumerate(
            zip(self._begun, self._parameters, strict=True)
        ):
            now = parameter.grad
            if self._came[number] > 1 and is_dtensor(parameter):
                raise several_error(name)
            if before is None or (now is not None and now.requires_grad):
                continue
            memory = _memory_of(before)
            if now is not before or memory._version != version + writes[id(memory)]:
                raise changed_error(f"the gradient of {name} was changed")
        self._begun = []

    @override
    def end_pass(self, flags: Sequence[int]) -> Sequence[int]:
        return flags

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        pass

    @override
    def take(self, number: int, parameter: torch.Tensor) -> None:
        self._came[number] += 1

    @override
    def close(self) -> None:
        self.remove_hooks()


class OrderedSum(GradientSum):
    """Those of several ranks; all of them call every method.

    Most programs call backward once in a shard, and each bucket leaves as soon as its gradients are there.
    The first time that a pass (the first loop over the shards of a step, the second, ...) is seen its
    gradients leave when the shard is over, by when the largest number of backwards is known; so they do later
    where that was another number than one.
    """

    def __init__(self, group: GlooGroup, shards: int) -> None:
        super().__init__()
        self._messages, self.rank, self.world_size = group, group.rank, group.world_size
        self._shards = shards
        # Apart from the program's own collectives. A bucket is gathered when it has come, which may be before
        # or after another leaves: ranks agree on the order in each of the two groups.
        self._group, self._gathers = _new_group(), _new_group()
        self._buckets: list[GradientBucket] = []
        self._arranged = self._parameters
        """Those that the buckets are of."""
        self._bucket_of: dict[int, GradientBucket] = {}
        self._backwards: dict[int, int] = {}
        """The largest number of backwards in a shard, by pass."""
        self._pass = self._most = 0
        self._first = 0
        """The first shard of the round."""
        self._before: Gradients = {}
        """The gradients from before the pass."""
        self._memory: Gradients = {}
        """These, or those of the last shard: the whole gradients get their memory and layout."""
        self._came: list[Gradients] = []
        """The gradients of the shard under way: of the first backward, of the second, ..."""
        self._used: set[int] = set()
        self._next = 0
        """The next bucket that leaves."""
        self._under_way: deque[_Sent] = deque()
        self._gathering: deque[tuple[GradientBucket, torch.Tensor, list[dist.Work]]] = deque()
        self._repeated = False
        self._spare = _SpareMemory()
        self._slices = SliceMessages(group)

    @property
    def active(self) -> int:
        """The number of ranks that have a shard in this round."""
        return min(self.world_size, self._shards - self._first)

    @property
    def _is_eager(self) -> bool:
        return self._backwards.get(self._pass) == 1

    @override
    def begin_pass(self, number: int) -> None:
        self._pass, self._first, self._most, self._repeated = number, 0, 0, False
        self._used.clear()
        if self._arranged is not self._parameters:
            self._arranged = self._parameters
            self._backwards.clear()
            self._buckets = _buckets(self._parameters, self.world_size)
            self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.numbers}
        self._before = self.take_before()
        self._memory = dict(self._before)
        for bucket in self._buckets:
            bucket.total = None
            started = {n: self._before[n].detach() for n in bucket.numbers if n in self._before}
            if started:
                flat = bucket.pack(started, self._take_memory(bucket, self.world_size))
                bucket.total = flat.view(self.world_size, bucket.piece)[self.rank].clone()

    @override
    def end_pass(self, flags: Sequence[int]) -> Sequence[int]:
        """Does so; a parameter that no shard used keeps what it had.

        Raises `InvalidArgumentError` on all ranks where one called backward more often in a shard than ever
        before.
        """
        if self._first < self._shards:  # a last round in which this rank has no shard
            self.begin_round()
            self.end_round()
        used = [int(number in self._used) for number in range(len(self._parameters))]
        reduced = self._messages.start_max_over_ranks([*used, int(self._repeated), *flags])
        while self._under_way:
            self._receive()
        of_all = reduced("at the end of the shards")
        used, repeated = of_all[: len(used)], of_all[len(used)]
        if repeated:
            raise InvalidArgumentError(
                "run.steps(shards=...): a shard called backward more often than those of the steps before, "
                "so that the order of the sum is lost. Call it once: (loss_a + loss_b).backward(), or as "
                "often in every step."
            )
        eager = self._is_eager
        if not eager:
            self._backwards[self._pass] = max(self._backwards.get(self._pass, 0), self._most)
        for bucket in [] if eager else self._buckets:
            if bucket.total is not None and any(used[number] for number in bucket.numbers):
                self._gathering.append(self._gather(bucket))
            if len(self._gathering) > IN_FLIGHT:
                self._hand_over(*self._gathering.popleft(), used)
        while self._gathering:
            self._hand_over(*self._gathering.popleft(), used)
        for number, before in self._before.items():
            if not used[number]:
                self._parameters[number][1].grad = before
        self._before, self._memory = {}, {}
        return of_all[len(used) + 1 :]

    @override
    def take(self, number: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        if self.rank >= self.active:  # one more backward of a rank without a shard, for FSDP2
            return
        self._used.add(number)
        if self._first + self.world_size >= self._shards:  # the last shard of this rank
            self._memory.setdefault(number, gradient)
        bucket = self._bucket_of[number]
        if not self._is_eager:
            which = next((n for n, one in enumerate(self._came) if number not in one), len(self._came))
            if which == len(self._came):
                self._came.append({})
            self._came[which][number] = gradient.detach()
        elif number in bucket.missing:
            self._came[0][number] = gradient.detach()
            bucket.missing.discard(number)
            while self._next < len(self._buckets) and not self._buckets[self._next].missing:
                self._launch()  # in one order on all ranks
        else:
            self._repeated = True

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        for device in {tensor.device for tensor in tensors}:
            here = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.device == device]
            flat = torch.cat(here)
            dist.broadcast(flat, 0, self._group)
            torch._foreach_copy_(here, list(flat.split([len(one) for one in here])))

    @override
    def close(self) -> None:
        self.remove_hooks()
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
            dist.destroy_process_group(self._gathers)

    @override
    def begin_round(self) -> None:
        self._next, self._came = 0, []
        if self._is_eager:
            self._came = [{}]
            for bucket in self._buckets:
                bucket.missing = set(bucket.numbers)

    @override
    def end_round(self) -> None:
        if self._is_eager:
            while self._next < len(self._buckets):
                self._launch()
        else:
            backwards = self._messages.max_over_ranks([len(self._came)], DOING)[0]
            self._came += [{} for _ in range(backwards - len(self._came))]
            for bucket in self._buckets if backwards else ():
                self._exchange_several(bucket)
            self._most = max(self._most, backwards)
        self._first += self.active

    def _launch(self) -> None:
        """Sends the next bucket, and receives an earlier one where too many are under way."""
        bucket = self._buckets[self._next]
        self._next += 1
        self._under_way.append(self._send(bucket, self._came[0]))
        is_last = self._first + self.active == self._shards  # then what is whole leaves early
        while len(self._under_way) > (1 if is_last else IN_FLIGHT):
            self._receive()

    def _receive(self) -> None:
        sent = self._under_way.popleft()
        self._slices.finish(sent.works)
        sent.bucket.add(sent.parts)
        self._spare.put(sent.flat, sent.received)
        if sent.is_last:  # the sum is whole: it leaves while others are still computed
            self._gathering.append(self._gather(sent.bucket))

    def _exchange_several(self, bucket: GradientBucket) -> None:
        """Sends the gradients of all backwards of a shard; those of one shard are added before the next's."""
        sent = [self._send(bucket, gradients) for gradients in self._came]
        for one in sent:
            self._slices.finish(one.works)
        bucket.add(one.parts[shard] for shard in range(self.active) for one in sent)

    def _send(self, bucket: GradientBucket, gradients: Gradients) -> _Sent:
        active = self.active
        mine = self.rank < active
        flat = self._take_memory(bucket, self.world_size if mine else 0)
        received = self._take_memory(bucket, active - mine)
        if mine:
            bucket.pack(gradients, flat)
        parts, works = self._slices.exchange(
            flat.view(-1, bucket.piece or 1), received.view(-1, bucket.piece or 1), self._group
        )
        return _Sent(bucket, flat, received, parts, self._first + active == self._shards, works)

    def _gather(self, bucket: GradientBucket) -> tuple[GradientBucket, torch.Tensor, list[dist.Work]]:
        assert bucket.total is not None
        whole = self._take_memory(bucket, self.world_size)
        parts = dict(enumerate(whole.view(self.world_size, -1)))
        parts.pop(self.rank).copy_(bucket.total)
        works = self._slices.start(dict.fromkeys(parts, bucket.total), parts, self._gathers)
        return bucket, whole, works

    def _hand_over(
        self, bucket: GradientBucket, whole: torch.Tensor, works: list[dist.Work], used: Sequence[int]
    ) -> None:
        """Gives the parameters of a bucket their gradients, in the layout that autograd would give them."""
        self._slices.finish(works)
        bucket.total = None
        parts = whole.split([*bucket.sizes, whole.numel() - sum(bucket.sizes)])
        gradients, sums = [], []
        for number, part, shape in zip(bucket.numbers, parts, bucket.shapes, strict=False):
            if used[number]:
                parameter = self._parameters[number][1]
                gradient = self._memory.pop(number, None)
                gradient = _empty_gradient(parameter) if gradient is None else gradient
                gradients.append(gradient)
                sums.append(part.view(shape))
                parameter.grad = gradient
        if gradients:
            with torch.no_grad():
                torch._foreach_copy_(gradients, sums)
        self._spare.put(whole)

    def _take_memory(self, bucket: GradientBucket, slices: int) -> torch.Tensor:
        return self._spare.take(bucket.piece * slices, bucket.dtype, bucket.device)


def _memory_of(gradient: Any) -> torch.Tensor:
    """Returns the tensor of which a gradient, or its rows on this rank, is a view; else itself."""
    own = local(gradient)
    return own if own._base is None else own._base


def changed_error(what: str) -> InvalidArgumentError:
    """Returns the error for gradients that the program changes between two shards."""
    return InvalidArgumentError(
        f"run.steps(shards=...): {what} inside the loop over the shards, so that the gradients of the shards "
        "before are lost. zero_grad, clipping and unscaling stand behind the loop, once in a step."
    )


def outside_error(name: str) -> InvalidArgumentError:
    """Returns the error for a gradient that does not come from a shard."""
    return InvalidArgumentError(
        f"run.steps(shards=...): a backward outside of the loop over the shards reached {name}, and of "
        "several processes no other would have its gradient. Put it into the loop: `for x, y in shards: "
        "loss.backward()`."
    )


def several_error(name: str) -> UnimplementedError:
    """Returns the error for a parameter of FSDP2 that gets several gradients in a shard."""
    return UnimplementedError(
        f"run.steps(shards=...): {name}, of fully_shard, got its gradient from several backwards of a shard, "
        "in another order in one shard than in another, or by its full_tensor() in the loss, so that the "
        "order of the sum is lost. Call backward once in a shard: (loss_a + loss_b).backward(); compute "
        "penalties of weights in the model's forward."
    )


def _buckets(parameters: Sequence[tuple[str, torch.nn.Parameter]], world_size: int) -> list[GradientBucket]:
    """Returns buckets of the parameters from the last to the first, in which order most gradients come."""
    made: list[GradientBucket] = []
    of_kind: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)

    def close(kind: tuple[torch.dtype, torch.device]) -> None:
        numbers = of_kind.pop(kind)
        sizes = [parameters[number][1].numel() for number in numbers]
        shapes = [parameters[number][1].shape for number in numbers]
        made.append(GradientBucket(numbers, sizes, shapes, *kind, piece=-(-sum(sizes) // world_size)))

    for number, (_, parameter) in reversed(list(enumerate(parameters))):
        kind = _gradient_dtype(parameter), parameter.device
        of_kind[kind].append(number)
        size = sum(parameters[one][1].numel() for one in of_kind[kind]) * kind[0].itemsize
        if size >= BUCKET:
            close(kind)
    for kind in list(of_kind):
        close(kind)
    return made


def _new_group() -> dist.ProcessGroup:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)  # no rank is left out
    return group


def _empty_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Returns memory in the layout of autograd's gradients (AccumulateGrad's contract).

    That is the parameter's, if it has no gaps, else the contiguous one.
    """
    like = torch.empty_like(parameter, dtype=_gradient_dtype(parameter))
    if like.stride() != parameter.stride():
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    return like


def _gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Returns the dtype of a parameter's gradient, which torch 2.13 lets a program choose."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def _fill_neutral(tensor: torch.Tensor) -> None:
    (torch.view_as_real(tensor) if tensor.is_complex() else tensor).fill_(-0.0)
