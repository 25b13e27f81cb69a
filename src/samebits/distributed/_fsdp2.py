"""FSDP2 under logical shards: `fully_shard`'s gradients, added in the order of shards.

FSDP2 hands each module's gradients to a reduce-scatter that a program may replace. Here it sends each rank
the rows that the rank owns, of every shard of the round, and the rank adds them to its running sum. So `grad`
is as one process adds it, and no rank ever has a whole gradient. At one process FSDP2 adds them itself.

All ranks run as many forwards and backwards, for FSDP2 gathers weights in each: in a last round with fewer
shards than ranks the others run one more, whose results are thrown away.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from samebits._inspect.patching import Patches
from samebits.distributed._gloo_messages import GlooGroup
from samebits.distributed._ordered_sum import GradientSum, OrderedSum, outside_error, several_error
from samebits.distributed._slice_messages import DOING, SliceMessages, added_slices
from samebits.errors import InvalidArgumentError, UnimplementedError

_SETTINGS = (
    "_reduce_scatter_comm",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "reduce_scatter_unused_params",
)
_NEVER = -(1 << 32)  # below the number of any reduction


def fsdp_modules(objects: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the modules that `fully_shard` was called on, each with its name."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not hasattr(fsdp, "FSDPModule"):
        return []
    roots = [(name, thing) for name, thing in objects.items() if isinstance(thing, torch.nn.Module)]
    return [
        (".".join(part for part in (name, path) if part), module)
        for name, root in roots
        for path, module in root.named_modules()
        if isinstance(module, fsdp.FSDPModule)
    ]


def reshard(modules: Iterable[tuple[str, Any]]) -> None:
    """Gives modules their sharded parameters: a forward without a backward leaves those of the root whole.

    The next forward would compute with them, though an optimizer has changed the sharded ones since.
    """
    for _, module in modules:
        module.reshard()


def refuse_sums_and_draws(patches: Patches) -> None:
    """Lets what torch computes of DTensors by the number of processes raise: sums over rows, and draws.

    A sum is partial on each rank until torch redistributes it, in one function that three modules have;
    `item` reads the part of its rank instead.
    """
    package = "torch.distributed.tensor"
    modules: list[Any] = [sys.modules[f"{package}.{name}"] for name in ("_redistribute", "_dispatch", "_api")]
    redistribute = modules[0].redistribute_local_tensor

    @functools.wraps(redistribute)
    def checked(tensor: torch.Tensor, spec: Any, target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_rounded = tensor.is_floating_point() or tensor.is_complex()
        for one, wanted in zip(spec.placements, target.placements, strict=True):
            # a maximum is exact, and so is a looked up row, to which other ranks add zeros
            sums = one.is_partial() and one.reduce_op not in ("max", "min")
            if sums and is_rounded and one != wanted and type(one).__name__ != "_MaskPartial":
                raise _by_number_error(f"{one}: a sum, mean or norm")
        return redistribute(tensor, spec, target, *args, **kwargs)

    def item(op: Any, args: Any, kwargs: Any) -> Any:
        if any(one.is_partial() for one in args[0].placements):
            raise _by_number_error("item(), float(), bool() of a sum, norm or maximum")
        return op(args[0]._local_tensor)

    def draw(op: Any, args: Any, kwargs: Any) -> Any:
        raise _by_number_error(f"{op}: a draw in the shape")

    for module in modules:
        patches.put(module, "redistribute_local_tensor", checked)
    dispatcher = modules[2].DTensor._op_dispatcher
    handlers = dispatcher._custom_op_handlers | dict.fromkeys(_random_ops(), draw)
    handlers[torch.ops.aten._local_scalar_dense.default] = item
    patches.put(dispatcher, "_custom_op_handlers", handlers)


@functools.cache
def _random_ops() -> list[Any]:
    names = [name.removeprefix("aten::").partition(".") for name in torch._C._dispatch_get_all_op_names()]
    ops = [getattr(getattr(torch.ops.aten, name, None), form or "default", None) for name, _, form in names]
    return [op for op in ops if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())]


def _by_number_error(what: str) -> UnimplementedError:
    return UnimplementedError(
        f"run.steps(shards=...): {what} of a tensor that fully_shard has sharded follows the number of "
        "processes, in torch. For a norm of gradients call samebits.nn.utils.clip_grad_norm_, for sums over "
        "shards shards.sum. Else compute with the whole tensor: value.full_tensor(); draw "
        "torch.randn(value.shape), and share it out by torch.distributed.tensor.distribute_tensor."
    )


class _ModuleSum:
    """The reduce-scatter of one FSDP module, and the running sum of this rank's rows."""

    def __init__(self, whole: Fsdp2Sum, name: str, module: Any) -> None:
        self._whole, self.name = whole, name
        self.groups = module._get_fsdp_state()._fsdp_param_groups
        self.calls = 0
        """Reductions in this shard."""
        self.is_begun = False
        """True if a reduction of this pass is in the sum."""
        self.total: torch.Tensor | None = None
        self.dtype: torch.dtype | None = None
        """That of the gradients; messages may have another one (`MixedPrecisionPolicy.reduce_dtype`)."""
        self.places: dict[int, tuple[int, torch.Size, tuple[int, ...]]] = {}
        """Offset, shape and strides in the sum, by parameter."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for a message."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Sends the rows in `input_tensor`; leaves `output_tensor` as it is, for the sum is not over."""
        self._whole.send(self, input_tensor, group)


class Fsdp2Sum(GradientSum):
    """The gradients of FSDP2's parameters over several ranks, and by `plain` those of all others."""

    def __init__(self, group: GlooGroup, plain: OrderedSum, modules: Sequence[tuple[str, Any]]) -> None:
        super().__init__()
        self.rank, self.world_size = group.rank, group.world_size
        self._messages, self._plain = group, plain
        self._slices = SliceMessages(group)
        self._sums = [_ModuleSum(self, name, module) for name, module in modules]
        self._sent: tuple[_ModuleSum, list[torch.Tensor], list[dist.Work]] | None = None
        """The last reduction: its module, the slices of the shards of the round, what they wait for."""
        self._last: _ModuleSum
        self._due: set[int] = set()
        """The ids of its parameters whose gradient it has not handed over."""
        self._neutral: set[int] = set()
        """The ids of parameters of this reduction whose gradient has not come."""
        self._before: dict[int, torch.Tensor] = {}
        self._sum_of: dict[int, _ModuleSum] = {}
        self._highest: dict[int, int] = {}
        self._lowest: dict[int, int] = {}
        """In which reduction of its module, in a shard, a parameter's gradient came."""
        self._settings: list[tuple[Any, str, Any]] = []
        """Those of FSDP2 before: its methods set them, and none returns them."""
        for own, (_, module) in zip(self._sums, modules, strict=True):
            self._settings += [(one, name, getattr(one, name)) for one in own.groups for name in _SETTINGS]
            module.set_custom_reduce_scatter(own)
            module.set_gradient_divide_factor(1.0)  # these two: a sum, never scaled
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True, recurse=False)
        self._patches = Patches()
        self._replace_zeros()
        self._meetings = 0
        """Those of this shard: at its first forward, and at its first backward."""
        kind: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"].FSDPParamGroup
        for number, name in enumerate(("pre_forward", "pre_backward"), 1):
            self._patches.put(kind, name, self._meeting(number, getattr(kind, name)))

    def _replace_zeros(self) -> None:
        """Lets FSDP2 send -0.0, the neutral element, for a parameter that a shard has not used."""
        kind: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param"].FSDPParam
        zeros, neutral = kind.unsharded_zero_grad_data.fget, self._neutral

        def of_unused(parameter: Any) -> torch.Tensor:
            neutral.add(id(parameter.sharded_param))
            return zeros(parameter).fill_(-0.0)

        self._patches.put(kind, "unsharded_zero_grad_data", property(of_unused))

    def _meeting(self, number: int, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def met(*args: Any, **kwargs: Any) -> Any:
            if self.in_shard:
                self._meet(number, 1)
            return method(*args, **kwargs)

        return met

    def _meet(self, number: int, is_there: int) -> None:
        """Raises on all ranks if only some have a forward, or a backward, in this round: they would wait."""
        while self._meetings < number:
            self._meetings += 1
            own = is_there if self._meetings == number else 0
            some, lacks = self._messages.max_over_ranks([own, 1 - own], DOING)
            if some and lacks:
                what = "backward" if self._meetings == 2 else "forward"
                raise InvalidArgumentError(
                    f"run.steps(shards=...): a shard has no {what}, and others have one. FSDP2 gathers "
                    "weights in each, so that all shards need it. Let a shard count for nothing by "
                    "`(loss * 0).backward()`, not by `continue`."
                )

    @override
    def begin_pass(self, number: int) -> None:
        self._plain.begin_pass(number)
        self._before = self.take_before()
        for record in (self._highest, self._lowest, self._sum_of):
            record.clear()
        for own in self._sums:
            own.is_begun, own.total, own.places = False, None, {}

    @override
    def begin_round(self) -> None:
        self._plain.begin_round()
        self._meetings = 0
        for own in self._sums:
            own.calls = 0

    @override
    def end_round(self) -> None:
        self._meet(2, 0)
        self._receive()
        self._plain.end_round()

    @override
    def end_pass(self, flags: Sequence[int]) -> Sequence[int]:
        numbers = range(len(self._parameters))
        highest = [self._highest.get(number, 0) for number in numbers]
        lowest = [-self._lowest[number] if number in self._lowest else _NEVER for number in numbers]
        of_all = self._plain.end_pass([*flags, *highest, *lowest])
        highest, lowest = of_all[len(flags) : -len(numbers) or None], of_all[len(of_all) - len(numbers) :]
        for number, (name, own_parameter) in enumerate(self._parameters):
            parameter: Any = own_parameter
            if highest[number] and highest[number] != -lowest[number]:
                raise several_error(name)
            if not highest[number]:
                parameter.grad = self._before.get(number)
                continue
            own = self._sum_of[number]
            assert own.total is not None
            offset, shape, strides = own.places[number]
            parameter.grad = type(parameter).from_local(
                own.total.as_strided(shape, strides, offset),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        self._before = {}
        for own in self._sums:
            own.total = None
        return of_all[: len(flags)]

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        self._plain.broadcast(tensors)

    @override
    def take(self, number: int, parameter: torch.Tensor) -> None:
        gradient: Any = parameter.grad  # its content is none yet: FSDP2 has cut it out of the sum's place
        local = gradient._local_tensor
        parameter.grad = None
        if id(parameter) not in self._due:  # autograd's, by full_tensor() or to_local() in the loss
            raise several_error(self._parameters[number][0])
        self._due.discard(id(parameter))
        own = self._last
        self._sum_of[number] = own
        place = local.storage_offset(), local.shape, local.stride()
        if id(parameter) in self._neutral:
            self._neutral.discard(id(parameter))
        elif self.rank < self._plain.active:
            self._highest[number] = max(self._highest.get(number, 0), own.calls)
            self._lowest[number] = min(self._lowest.get(number, own.calls), own.calls)
        if own.is_begun:
            if own.places.get(number) != place:
                raise InvalidArgumentError(
                    f"run.steps(shards=...): {self._parameters[number][0]} was frozen or unfrozen inside the "
                    "loop over the shards. Call requires_grad_ before the loop."
                )
            return
        own.places[number], own.dtype = place, local.dtype
        if number in self._before:
            if own.total is None:
                assert self._sent is not None
                own.total = torch.full_like(self._sent[1][0], -0.0, dtype=local.dtype)
            before: Any = self._before[number]
            own.total.as_strided(*place[1:], place[0]).copy_(before._local_tensor)

    def send(self, own: _ModuleSum, rows: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Begins to exchange the gradients of one module, `rows` of which are rank 0's, then rank 1's...

        Raises `InvalidArgumentError` outside of a shard.
        """
        self._receive()
        if not self.in_shard:
            raise outside_error(own.name)
        active = self._plain.active
        mine = self.rank < active
        size = rows.numel() // self.world_size
        slices = rows.view(self.world_size, size)[: None if mine else 0]
        received = rows.new_empty(active - mine, size)
        parts, works = self._slices.exchange(slices, received, group)
        if rows.device.type != "cpu":  # this stream waits, and the memory of `rows` is free when it has
            self._slices.finish(works)
            works = []
        own.calls += 1
        self._last, self._sent = own, (own, parts, works)
        self._due = {id(one.sharded_param) for group in own.groups for one in group.fsdp_params}

    def _receive(self) -> None:
        if self._sent is None:
            return
        (own, parts, works), self._sent = self._sent, None
        self._slices.finish(works)
        own.total = added_slices(own.total, (part.to(own.dtype) for part in parts))
        own.is_begun = True

    @override
    def close(self) -> None:
        self.remove_hooks()
        self._patches.undo()
        for group, name, value in reversed(self._settings):
            setattr(group, name, value)
        self._plain.close()
