"""One graph of a whole training step, in one process: forward, backward, collectives, optimizer update."""

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
from samebits.replica._capture.compile_regions import preserve_compile_regions
from samebits.replica._capture.lifting import LiftedArguments, dotted_path, names_of
from samebits.replica._capture.per_rank import (
    PerRank,
    check_fresh,
    check_makers,
    existing_objects,
    make_argument,
    name_constants,
    zero_leftovers,
)
from samebits.replica._capture.rank_differences import RankTrace, compare_ranks, groups_of, trace_of
from samebits.replica._capture.restored_objects import restore_generators, restore_objects
from samebits.replica._capture.trace_patches import (
    disable_constant_folding,
    forbid_data_assignment,
    forbid_seeding,
    torchrun_environment,
    trace_writes_to_constants,
    translate_tracing_errors,
)
from samebits.replica._capture.undeclared_state import (
    check_closures,
    check_optimizers,
    check_second_step,
    constant_of,
    unwritten_batch_tensors,
)

ALL_RANKS = 64
"""Up to this number of ranks all are run; beyond, the corners of the mesh and a sample."""
_SAMPLED = 16
MOST_RANKS = 16_384
"""A group of all ranks is stored rank by rank: this many took 1.3 s, four times as many over a minute."""


def capture(
    step: Callable[..., Any],
    *args: Any,
    world_size: int | None = None,
    mesh: Mapping[str, int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CapturedStep:
    """Captures `step(*args)` as it would run on `world_size` ranks, or on a mesh (`{"dp": 2, "tp": 4}`).

    `args` are tensors in any tree, modules and optimizers; copies of them are traced with fake tensors, so
    the caller's objects stay as they are. The objects that the step closes over are restored: gradients,
    modes, optimizers, schedulers, generators, counters; not the position of an iterator, nor NumPy arrays. A
    step with an argument `mesh` gets the `DeviceMesh`. Names of the inputs: `model.fc.weight`,
    `optimizer.model.fc.weight.exp_avg`, `params.w` for `params["w"]`. `on_progress(done, total)` is called
    after each rank as which the code was run. At most 16,384 ranks are followed.

    `DistributedDataParallel` reduces in C++, which no graph shows: use `samebits.replica.DataParallel`.

    Raises:
        RankDependentError: the code does other things on other ranks.
        ConflictError: a process group exists already.
        UnimplementedError: a module of FSDP2 that is not made by a `PerRank`, or one of torch.compile; the
            code reads the value of a tensor.
        InvalidArgumentError: not one of `world_size` and `mesh`, too many ranks, an optimizer without module.

    Example:
        >>> def step(model, x):
        ...     return model(x)
        >>> args = torch.nn.Linear(3, 1), torch.ones(4, 3)
        >>> captured = samebits.replica.capture(step, *args, world_size=8)
        >>> captured.kinds
        {'model.weight': 'state', 'model.bias': 'state', 'x': 'batch'}
    """
    if (world_size is None) == (mesh is None):
        raise InvalidArgumentError("capture: give world_size=8, or mesh={'dp': 2, 'tp': 4}.")
    if mesh is not None and not (isinstance(mesh, Mapping) and all(isinstance(axis, str) for axis in mesh)):
        raise InvalidArgumentError(
            f"capture: mesh={mesh!r}: give names and sizes of its axes, mesh={{'dp': 2, 'tp': 4}}."
        )
    if dist.is_initialized():
        raise ConflictError(
            "capture: this process has a process group; capture before init_process_group, or in a "
            "process of its own."
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
            f"capture: {ranks} ranks, and at most {MOST_RANKS} are followed. Capture a smaller world of the "
            "same shape, mesh={'dp': 8, 'tp': 4} for {'dp': 8192, 'tp': 4}: code that does the same on all "
            "ranks gives the same answers."
        )
    names = names_of(step, len(args))
    if mesh is None and _needs_mesh(step):
        raise InvalidArgumentError(
            f"capture: the step takes a mesh; for world_size={world_size}, give mesh={{'dp': {world_size}}}."
        )
    check_makers(args)
    lifted = LiftedArguments(names, args)
    closure = Closure(step, dict(zip(names, lifted.args, strict=True)))
    traces, outputs = [], pytree.tree_structure(None)
    shards: dict[str, set[tuple[int, ...]]] = {}
    seen = existing_objects(closure)
    chosen = _ranks_to_run(ranks, axes)
    with restore_generators(closure.objects()):
        for rank in chosen:
            with (
                _fake_world(rank, ranks),
                torchrun_environment(rank, ranks),
                restore_objects(closure.objects()),
            ):
                arguments = lifted.copy_objects()
                with translate_tracing_errors():
                    traced = _trace_as_rank(step, arguments, axes, closure, seen)
                check_closures(traced.module, args)
                traces.append(trace_of(rank, traced.module))
                if len(traces) == 1:
                    outputs, left = traced.outputs, arguments.zero_leftovers()
                    check_optimizers(closure)
                    with translate_tracing_errors():
                        following = _trace_as_rank(step, arguments, axes, closure, seen, traced.made)
                    check_second_step(traces[0], following.module, {**left, **following.left})
            for name, groups in traced.shards.items():
                shards.setdefault(name, set()).update(groups)
            if on_progress is not None:
                on_progress(len(traces), len(chosen))
    found = _assemble(traces, lifted, outputs, ranks, axes)
    found.shards.update((n, tuple(sorted(groups))) for n, groups in shards.items() if n in found.kinds)
    unwritten = unwritten_batch_tensors(found.module, lifted.tensors_outside_trees())
    alone = tuple((rank,) for rank in range(ranks))
    found.shards.update((name, alone) for name in unwritten if name in found.kinds)
    return found


def _assemble(
    traces: list[RankTrace],
    lifted: LiftedArguments,
    outputs: pytree.TreeSpec,
    ranks: int,
    axes: dict[str, int],
) -> CapturedStep:
    module = traces[0].module
    by_rank = compare_ranks(traces, ranks)
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
    return [dotted_path(("output", *path)) for path, _ in paths]


class _RankRun(NamedTuple):
    """One run of the code as one rank."""

    module: GraphModule
    outputs: pytree.TreeSpec
    shards: dict[str, Groups]
    """The ranks that hold each shard among the constants."""
    made: dict[str, Any]
    """The result of each `PerRank`."""
    left: dict[str, torch.Tensor]
    """Zeros for the tensors that the run `before` has left in the objects."""


def _trace_as_rank(
    step: Callable[..., Any],
    lifted: LiftedArguments,
    axes: dict[str, int],
    closure: Closure,
    seen: dict[int, ref[Any]],
    before: Mapping[str, Any] | None = None,
) -> _RankRun:
    makers = {n: one for n, one in zip(lifted.names, lifted.args, strict=True) if isinstance(one, PerRank)}
    mesh: dict[str, Any] = {}
    if axes and any(map(_takes_mesh, (step, *(one.make for one in makers.values())))):
        mesh["mesh"] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    extra = mesh if _takes_mesh(step) else {}
    found: list[pytree.TreeSpec] = []
    made, left = {name: make_argument(one, mesh) for name, one in makers.items()}, {}
    for name, one in made.items():
        check_fresh(name, one, seen)
        left |= zero_leftovers(name, before[name], one) if before else {}

    def step_on_rank(*args: Any, **kwargs: Any) -> Any:
        given = (made.get(name, one) for name, one in zip(lifted.names, args, strict=True))
        return step(*given, **kwargs)

    def flat(*tensors: torch.Tensor) -> list[Any]:
        leaves, outputs = pytree.tree_flatten(lifted.call(step_on_rank, list(tensors), **extra))
        found[:] = [outputs]
        return leaves

    traced = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True)
    with (
        replaced(PythonKeyTracer, "_filter_traceback_frames", _select_user_frames),
        # torch.cond and while_loop compile: after other shapes, one trace would take sizes for symbols
        torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        preserve_compile_regions(),
        disable_constant_folding(),
        trace_writes_to_constants(),
        forbid_seeding(),
        forbid_data_assignment(),
    ):
        module = traced(*(slot.tensor for slot in lifted.slots))
    return _RankRun(module, found[0], name_constants(module, made, closure), made, left)


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


def _select_user_frames(tracer: PythonKeyTracer, frames: Any) -> Any:
    """Replaces the tracer's filter of stack frames, which keeps only lines of functions named `forward`."""
    return type(frames).from_list(user_frames(frames)[-4:])


def _ranks_to_run(ranks: int, axes: Mapping[str, int]) -> list[int]:
    if ranks <= ALL_RANKS:
        return list(range(ranks))
    sizes = tuple(axes.values()) or (ranks,)
    places = torch.arange(ranks).reshape(sizes)
    corners = {int(places[corner]) for corner in product(*((0, size - 1) for size in sizes))}
    return sorted({*corners, *range(0, ranks, -(-ranks // _SAMPLED))})


def _constants(module: GraphModule) -> list[str]:
    """Returns the names of the constants, one for those that share their bytes (FSDP2's flat shards)."""
    names: dict[ByteRange | str, str] = {}
    for node in module.graph.nodes:
        if (held := constant_of(node, module)) is not None:
            name, place = str(node.target), constant_place(held)
            names.setdefault(place if place.dense else name, name)
    return list(names.values())
