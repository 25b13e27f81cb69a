"""One graph of a whole training step, without a second process: forward, backward, collectives, optimizer update."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

from samebits.errors import ConflictError, InvalidArgumentError, UnimplementedError
from samebits.replica.built import PerRank, built, name_constants
from samebits.replica.hidden import check_closures, check_next, constant_of, read_only
from samebits.replica.lifting import Lifted, dotted, names_of
from samebits.replica.partitions import Groups
from samebits.replica.ranks import Trace, compared, groups_of, trace_of
from samebits.replica.regions import kept_calls
from samebits.replica.rules import generator_names, written_inputs
from samebits.replica.step import BATCH, CONSTANT, GENERATOR, STATE, CapturedStep
from samebits.replica.watch import launched_as, no_known_numbers, no_seeds, no_swaps, no_writes

ALL_RANKS = 64
"""Up to so many ranks the code runs as each of them; beyond, as the corners of the mesh and a sample."""
_SAMPLED = 16


def capture(
    step: Callable[..., Any],
    *args: Any,
    world_size: int | None = None,
    mesh: Mapping[str, int] | None = None,
    looked: Callable[[int, int], None] | None = None,
) -> CapturedStep:
    """Captures `step(*args)` as it would run on `world_size` ranks, or on a mesh (`{"dp": 2, "tp": 4}`).

    `args` are tensors in any tree, modules and optimizers; copies of them are traced with fake tensors, so nothing of
    the caller's is changed and nothing is computed. A step with an argument `mesh` gets the `DeviceMesh`. Names of the
    inputs: `model.fc.weight`, `optimizer.model.fc.weight.exp_avg`, `params.w` for `params["w"]`. `looked` is told after
    each rank as how many the code was run, of how many.

    `DistributedDataParallel` reduces in C++, which no graph shows: wrap the module in `samebits.replica.DataParallel`.

    Raises:
        RankDependentError: the code does other things on other ranks.
        ConflictError: a process group is there already.
        UnimplementedError: a module of FSDP2 that is not made by a `PerRank`, or one of torch.compile; the code reads
            the value of a tensor.
        InvalidArgumentError: neither or both of `world_size` and `mesh`, or an optimizer without its module.
    """
    if (world_size is None) == (mesh is None):
        raise InvalidArgumentError("capture: give world_size=8, or mesh={'dp': 2, 'tp': 4}.")
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
    lifted = Lifted(names_of(step, len(args)), args)
    traces, outputs = [], pytree.tree_structure(None)
    shards: dict[str, set[tuple[int, ...]]] = {}
    chosen = _looked_at(ranks, axes)
    for rank in chosen:
        with _fake_world(rank, ranks), launched_as(rank, ranks):
            own = lifted.again()
            module, outputs, held = _traced(step, own, axes)
            check_closures(module, args)
            traces.append(trace_of(rank, module))
            if len(traces) == 1:
                left = own.left_over()
                check_next(traces[0], _traced(step, own, axes)[0], left)
        for name, groups in held.items():
            shards.setdefault(name, set()).update(groups)
        if looked is not None:
            looked(len(traces), len(chosen))
    found = _assembled(traces, lifted, outputs, ranks, axes)
    found.shards.update((name, tuple(sorted(groups))) for name, groups in shards.items())
    found.shards.update(
        (name, tuple((rank,) for rank in range(ranks))) for name in read_only(found.module, lifted.hidden())
    )
    return found


def _assembled(
    traces: list[Trace], lifted: Lifted, outputs: pytree.TreeSpec, ranks: int, axes: dict[str, int]
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


def _traced(
    step: Callable[..., Any], lifted: Lifted, axes: dict[str, int]
) -> tuple[GraphModule, pytree.TreeSpec, dict[str, Groups]]:
    """The graph, the tree of what the step returns, and who holds the shards among its constants."""
    makers = [one.make for one in lifted.args if isinstance(one, PerRank)]
    mesh: dict[str, Any] = {}
    if axes and any(map(_takes_mesh, (step, *makers))):
        mesh["mesh"] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    extra = mesh if _takes_mesh(step) else {}
    found: list[pytree.TreeSpec] = []

    made = {name: built(one, mesh) for name, one in zip(lifted.names, lifted.args, strict=True)}

    def own(*args: Any, **kwargs: Any) -> Any:
        pairs = zip(lifted.names, lifted.args, args, strict=True)
        return step(
            *(made[name] if isinstance(one, PerRank) else given for name, one, given in pairs), **kwargs
        )

    def flat(*tensors: torch.Tensor) -> list[Any]:
        leaves, outputs = pytree.tree_flatten(lifted.call(own, list(tensors), **extra))
        found[:] = [outputs]
        return leaves

    traced = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True)
    with (
        _user_frames(),
        kept_calls(),
        no_known_numbers(),
        no_writes(),
        no_seeds(),
        no_swaps(),
        _values_unread(),
    ):
        module = traced(*(slot.tensor for slot in lifted.slots))
    return module, found[0], name_constants(module, made)


def _takes_mesh(function: Callable[..., Any]) -> bool:
    return "mesh" in inspect.signature(function).parameters


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


@contextlib.contextmanager
def _user_frames() -> Iterator[None]:
    """Has the tracer keep the lines of the user; of itself it keeps those of functions named `forward`."""
    original = PythonKeyTracer._filter_traceback_frames
    PythonKeyTracer._filter_traceback_frames = _of_the_user  # type: ignore[method-assign]
    try:
        yield
    finally:
        PythonKeyTracer._filter_traceback_frames = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _values_unread() -> Iterator[None]:
    """Says in the user's words that Python read a value: nothing is computed, so there is none."""
    try:
        yield
    except GuardOnDataDependentSymNode as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_MACHINERY)]
        line = (
            f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}: {own[-1].line}"
            if own
            else "no source line"
        )
        raise UnimplementedError(
            f"capture: the Python code reads the value of a tensor, and a capture computes none [{line}]. Return the "
            "tensor and read it outside of the step (float(loss), print); choose by torch.where or torch.cond instead of "
            "an if; leave GradScaler out, its scale changes no equality."
        ) from None


def _of_the_user(tracer: PythonKeyTracer, frames: Any) -> Any:
    kept = [frame for frame in frames if not frame.filename.startswith(_MACHINERY)]
    return type(frames).from_list(kept[-4:])


_MACHINERY = (
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    os.path.dirname(contextlib.__file__),
    "<",
)


def _looked_at(ranks: int, axes: Mapping[str, int]) -> list[int]:
    if ranks <= ALL_RANKS:
        return list(range(ranks))
    sizes = tuple(axes.values()) or (ranks,)
    places = torch.arange(ranks).reshape(sizes)
    corners = {int(places[corner]) for corner in product(*((0, size - 1) for size in sizes))}
    return sorted({*corners, *range(0, ranks, -(-ranks // _SAMPLED))})


def _constants(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if constant_of(node, module) is not None]
