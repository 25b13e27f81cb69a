"""One graph of a whole training step, without a second process: forward, backward, collectives, optimizer update."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

from samebits._inspect.patching import replaced
from samebits._inspect.user_code import user_frames
from samebits.errors import ConflictError, InvalidArgumentError
from samebits.replica._analysis.memory import ByteRange
from samebits.replica._analysis.op_rules import generator_names, written_inputs
from samebits.replica._analysis.partitions import Groups
from samebits.replica._analysis.storage_layout import constant_place
from samebits.replica._capture.captured_step import BATCH, CONSTANT, GENERATOR, STATE, CapturedStep
from samebits.replica._capture.closures import Closure
from samebits.replica._capture.compile_regions import kept_calls
from samebits.replica._capture.lifting import Lifted, dotted, names_of
from samebits.replica._capture.per_rank import (
    PerRank,
    built,
    check_fresh,
    check_makers,
    known,
    left_over,
    name_constants,
)
from samebits.replica._capture.rank_differences import RankTrace, compared, groups_of, trace_of
from samebits.replica._capture.restored_objects import kept_generators, kept_objects
from samebits.replica._capture.tracing_errors import told_in_the_users_words
from samebits.replica._capture.tracing_patches import (
    launched_as,
    no_known_numbers,
    no_seeds,
    no_swaps,
    no_writes,
)
from samebits.replica._capture.undeclared_state import (
    check_closures,
    check_next,
    check_optimizers,
    constant_of,
    read_only,
)

ALL_RANKS = 64
"""Up to so many ranks the code runs as each of them; beyond, as the corners of the mesh and a sample."""
_SAMPLED = 16
MOST_RANKS = 16_384
"""A group of all ranks is written down rank by rank. So many took 1.3 s to capture and analyze, four times as many more than a minute."""


def capture(
    step: Callable[..., Any],
    *args: Any,
    world_size: int | None = None,
    mesh: Mapping[str, int] | None = None,
    looked: Callable[[int, int], None] | None = None,
) -> CapturedStep:
    """Captures `step(*args)` as it would run on `world_size` ranks, or on a mesh (`{"dp": 2, "tp": 4}`); at most 16,384 ranks.

    `args` are tensors in any tree, modules and optimizers; copies of them are traced with fake tensors, so nothing of
    the caller's is changed and nothing is computed. What the step changes in what it closes over is put back: gradients,
    modes, optimizers, schedulers, generators, counters; not the place of an iterator, nor NumPy arrays. A step with an
    argument `mesh` gets the `DeviceMesh`. Names of the inputs: `model.fc.weight`,
    `optimizer.model.fc.weight.exp_avg`, `params.w` for `params["w"]`. `looked` is told after each rank as how many the
    code was run, of how many.

    `DistributedDataParallel` reduces in C++, which no graph shows: wrap the module in `samebits.replica.DataParallel`.

    Raises:
        RankDependentError: the code does other things on other ranks.
        ConflictError: a process group is there already.
        UnimplementedError: a module of FSDP2 that is not made by a `PerRank`, or one of torch.compile; the code reads
            the value of a tensor.
        InvalidArgumentError: neither or both of `world_size` and `mesh`, more ranks than are followed, or an optimizer
            without its module.
    """
    if (world_size is None) == (mesh is None):
        raise InvalidArgumentError("capture: give world_size=8, or mesh={'dp': 2, 'tp': 4}.")
    if mesh is not None and not (isinstance(mesh, Mapping) and all(isinstance(axis, str) for axis in mesh)):
        raise InvalidArgumentError(
            f"capture: mesh={mesh!r}: give names and sizes of its axes, mesh={{'dp': 2, 'tp': 4}}."
        )
    if dist.is_initialized():
        raise ConflictError(
            "capture: this process has a process group; capture before init_process_group, or in a process of its own."
        )
    axes = dict(mesh or {})
    sizes: list[Any] = [world_size] if mesh is None else [*axes.values()]
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise InvalidArgumentError(
            f"capture: world_size={world_size}, mesh={mesh}: sizes are integers, at least 1."
        )
    ranks = math.prod(sizes)
    if ranks > MOST_RANKS:
        raise InvalidArgumentError(
            f"capture: {ranks} ranks, and at most {MOST_RANKS} are followed. Capture a smaller world of the same shape, "
            "mesh={'dp': 8, 'tp': 4} for {'dp': 8192, 'tp': 4}: code that does the same on all ranks gives the same answers."
        )
    names = names_of(step, len(args))
    if mesh is None and _needs_mesh(step):
        raise InvalidArgumentError(
            f"capture: the step takes a mesh; instead of world_size={world_size}, give mesh={{'dp': {world_size}}}."
        )
    check_makers(args)
    lifted = Lifted(names, args)
    closure = Closure(step, dict(zip(names, lifted.args, strict=True)))
    traces, outputs = [], pytree.tree_structure(None)
    shards: dict[str, set[tuple[int, ...]]] = {}
    seen = known(closure)
    chosen = _looked_at(ranks, axes)
    with kept_generators(closure.objects()):
        for rank in chosen:
            with _fake_world(rank, ranks), launched_as(rank, ranks), kept_objects(closure.objects()):
                own = lifted.again()
                with told_in_the_users_words():
                    traced = _traced(step, own, axes, closure, seen)
                check_closures(traced.module, args)
                traces.append(trace_of(rank, traced.module))
                if len(traces) == 1:
                    outputs, left = traced.outputs, own.left_over()
                    check_optimizers(closure)
                    with told_in_the_users_words():
                        following = _traced(step, own, axes, closure, seen, traced.made)
                    check_next(traces[0], following.module, {**left, **following.left})
            for name, groups in traced.shards.items():
                shards.setdefault(name, set()).update(groups)
            if looked is not None:
                looked(len(traces), len(chosen))
    found = _assembled(traces, lifted, outputs, ranks, axes)
    found.shards.update((n, tuple(sorted(groups))) for n, groups in shards.items() if n in found.kinds)
    found.shards.update(
        (name, tuple((rank,) for rank in range(ranks)))
        for name in read_only(found.module, lifted.hidden())
        if name in found.kinds
    )
    return found


def _assembled(
    traces: list[RankTrace], lifted: Lifted, outputs: pytree.TreeSpec, ranks: int, axes: dict[str, int]
) -> CapturedStep:
    module = traces[0].module
    by_rank = compared(traces, ranks)
    kinds = {slot.name: slot.kind for slot in lifted.slots}
    places = written_inputs(module)
    written = tuple(name for index, name in enumerate(kinds) if index in places and kinds[name] == BATCH)
    kinds.update(dict.fromkeys(written, STATE))
    kinds.update(dict.fromkeys(generator_names(module), GENERATOR))
    kinds.update(dict.fromkeys(_constants(module), CONSTANT))
    return CapturedStep(
        module,
        ranks,
        kinds,
        _names(outputs),
        groups_of(traces, ranks, axes),
        by_rank,
        axes,
        tuple(t.rank for t in traces),
        lifted.names,
        outputs,
        numbers=lifted.numbers(),
        written=written,
    )


def _names(outputs: pytree.TreeSpec) -> list[str]:
    paths = pytree.tree_flatten_with_path(pytree.tree_unflatten([0] * outputs.num_leaves, outputs))[0]
    return ["output" + ("." + dotted(path) if path else "") for path, _ in paths]


class _Traced(NamedTuple):
    """One run of the code as one rank."""

    module: GraphModule
    outputs: pytree.TreeSpec
    """The tree of what the step returns."""
    shards: dict[str, Groups]
    """Who holds the shards among the constants."""
    made: dict[str, Any]
    """What each `PerRank` gave."""
    left: dict[str, torch.Tensor]
    """Zeros for what the run `before` has left in it."""


def _traced(
    step: Callable[..., Any],
    lifted: Lifted,
    axes: dict[str, int],
    closure: Closure,
    seen: dict[int, ref[Any]],
    before: Mapping[str, Any] | None = None,
) -> _Traced:
    makers = {n: one for n, one in zip(lifted.names, lifted.args, strict=True) if isinstance(one, PerRank)}
    mesh: dict[str, Any] = {}
    if axes and any(map(_takes_mesh, (step, *(one.make for one in makers.values())))):
        mesh["mesh"] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    extra = mesh if _takes_mesh(step) else {}
    found: list[pytree.TreeSpec] = []
    made, left = {name: built(one, mesh) for name, one in makers.items()}, {}
    for name, one in made.items():
        check_fresh(name, one, seen)
        left |= left_over(name, before[name], one) if before else {}

    def own(*args: Any, **kwargs: Any) -> Any:
        return step(
            *(made.get(name, given) for name, given in zip(lifted.names, args, strict=True)), **kwargs
        )

    def flat(*tensors: torch.Tensor) -> list[Any]:
        leaves, outputs = pytree.tree_flatten(lifted.call(own, list(tensors), **extra))
        found[:] = [outputs]
        return leaves

    traced = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True)
    with (
        replaced(PythonKeyTracer, "_filter_traceback_frames", _of_the_user),
        # torch.cond and while_loop compile: after other shapes they would take sizes for symbols, in one trace and not in another
        torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        kept_calls(),
        no_known_numbers(),
        no_writes(),
        no_seeds(),
        no_swaps(),
    ):
        module = traced(*(slot.tensor for slot in lifted.slots))
    return _Traced(module, found[0], name_constants(module, made, closure), made, left)


def _takes_mesh(function: Callable[..., Any]) -> bool:
    return "mesh" in inspect.signature(function).parameters


def _needs_mesh(step: Callable[..., Any]) -> bool:
    return _takes_mesh(step) and inspect.signature(step).parameters["mesh"].default is inspect.Parameter.empty


@contextlib.contextmanager
def _fake_world(rank: int, ranks: int) -> Iterator[None]:
    state, hook = torch.get_rng_state(), sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    sys.excepthook = hook  # a process group puts its rank in front of every line of a traceback
    try:
        yield
    finally:
        torch.set_rng_state(state)
        dist.destroy_process_group()


def _of_the_user(tracer: PythonKeyTracer, frames: Any) -> Any:
    """In place of the tracer's own filter, which keeps of itself the lines of functions named `forward`."""
    return type(frames).from_list(user_frames(frames)[-4:])


def _looked_at(ranks: int, axes: Mapping[str, int]) -> list[int]:
    if ranks <= ALL_RANKS:
        return list(range(ranks))
    sizes = tuple(axes.values()) or (ranks,)
    places = torch.arange(ranks).reshape(sizes)
    corners = {int(places[corner]) for corner in product(*((0, size - 1) for size in sizes))}
    return sorted({*corners, *range(0, ranks, -(-ranks // _SAMPLED))})


def _constants(module: GraphModule) -> list[str]:
    """The names of the constants, one for each that is read through several tensors of the same bytes (FSDP2's flat shards)."""
    names: dict[ByteRange | str, str] = {}
    for node in module.graph.nodes:
        if (held := constant_of(node, module)) is not None:
            name, place = str(node.target), constant_place(held)
            names.setdefault(place if place.dense else name, name)
    return list(names.values())
