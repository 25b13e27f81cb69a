"""Patches for the time of a trace: seeds that the step sets are refused, writes to constants are traced."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from samebits._inspect.patching import replaced
from samebits._inspect.user_code import owner_of_file, user_frames
from samebits.errors import ConflictError, InvalidArgumentError, SamebitsError, UnimplementedError


@contextlib.contextmanager
def disable_constant_folding() -> Iterator[None]:
    """Makes `.item()` of a `torch.tensor(3)` a value of the graph, as of any other tensor.

    Tracing would keep the number, and misses changes by collectives, ops over lists and writes through views.
    """
    with (
        replaced(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1),
        replaced(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1),
    ):
        yield


@contextlib.contextmanager
def trace_writes_to_constants() -> Iterator[None]:
    """Has `counter.add_(1)` of a closed-over tensor traced; fake tensors would run it on the tensor."""
    original = fake_tensor.should_allow_numbers_as_tensors
    with replaced(
        fake_tensor, "should_allow_numbers_as_tensors", lambda op: original(op) and not op._schema.is_mutable
    ):
        yield


@contextlib.contextmanager
def forbid_seeding() -> Iterator[None]:
    """Refuses a step that seeds the generator of the process: draws on fake tensors do not move it.

    Raises UnimplementedError at the first op after the seeding, and at the end of the step.
    """
    start, seed, original = torch.get_rng_state(), torch.initial_seed(), PythonKeyTracer.create_node

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Node:
        node = original(tracer, *args, **kwargs)
        if torch.initial_seed() != seed:
            raise _seeded(f"before {node.name} = {node.target}")
        return node

    with replaced(PythonKeyTracer, "create_node", create_node):
        yield
    if not torch.equal(torch.get_rng_state(), start):
        raise _seeded("at its end")


def _seeded(where: str) -> UnimplementedError:
    return UnimplementedError(
        f"capture: the step sets the state of the generator of the process (found {where}); the analysis "
        "does not follow torch.manual_seed and set_rng_state. Seed before the step, or draw from a "
        "torch.Generator of its own."
    )


@contextlib.contextmanager
def forbid_data_assignment() -> Iterator[None]:
    """Refuses `x.data = y`, which gives a tensor other memory and is no op of a trace."""

    def swap(tensor: torch.Tensor, value: torch.Tensor) -> None:
        raise UnimplementedError(
            f"capture: the step sets x.data of a tensor of shape {tuple(tensor.shape)}, which a trace does "
            "not show; write x.data.copy_(y)."
        )

    refusing = property(torch._C.TensorBase.data.__get__, swap)  # type: ignore[attr-defined]
    with replaced(torch.Tensor, "data", refusing):
        yield


@contextlib.contextmanager
def torchrun_environment(rank: int, ranks: int) -> Iterator[None]:
    """Sets the environment that `torchrun` gives a process of one host."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# Translates torch's tracing errors into the user's terms: the call, the line, the cure.


_UNREAD = (
    "the Python code reads the value of a tensor, and a capture computes none [{line}]. Return the tensor "
    "and read it outside of the step (float(loss), print); choose by torch.where or torch.cond instead of an "
    "if; leave GradScaler out, its scale changes no equality."
)
_OBJECTS = (
    "an object collective pickles what it sends, and a capture computes no bytes [{line}]. Call it before "
    "the step, and give the step what came out; or send tensors: all_gather_into_tensor, broadcast."
)
_COALESCED = (
    "the result of {op}, which coalesced collectives become, is not known [{line}]. Call them one after the "
    "other: which ranks are equal does not depend on it."
)
_NESTED = (
    "a capture does not follow nested tensors [{line}]. Give the step their values and offsets, n.values() "
    "and n.offsets(), or padded tensors with a mask."
)
_COMPILED = (
    "the step calls what torch.compile made, which a trace does not enter [{line}]. Call the function or the "
    "module that was compiled; that changes no equality."
)
_WRAPPED = (
    "DistributedDataParallel reduces in C++, which no graph shows [{line}]. Wrap the module in "
    "samebits.replica.DataParallel(module), outside of the step."
)
_GROUP = (
    "the step makes a process group, as a Run does [{line}], and a capture runs it in one of its own. Call "
    "init_process_group outside of the step, after the capture, and give a capture what the loop of a Run "
    "does in a step: one shard's forward and backward, and the update."
)
_AXES = (
    "the step or its PerRank uses an axis that the mesh does not have [{line}]: {error}. The mesh is that of "
    "capture(..., mesh=...)."
)
_UNKNOWN = (
    "torch does not know the shape of what {op} gives [{line}]. An op of your own: "
    "torch.library.register_fake; else compute it before the step, and give the step what came out."
)


@contextlib.contextmanager
def translate_tracing_errors() -> Iterator[None]:
    """Refuses steps that a trace cannot follow; exceptions of the user's own code pass unchanged.

    Raises:
        UnimplementedError, InvalidArgumentError, ConflictError: instead of torch's, with the step's line.
    """
    try:
        yield
    except SamebitsError:
        raise
    except Exception as error:
        found = _refusal(error, traceback.extract_tb(error.__traceback__))
        if found is None:
            raise
        kind, text = found
        line, op = _line(error), getattr(error, "func", "")
        raise kind(f"capture: {text.format(line=line, op=op, error=str(error).strip(chr(34)))}") from None


def _refusal(error: Exception, frames: traceback.StackSummary) -> tuple[type[SamebitsError], str] | None:
    """Returns class and text for an exception, by its kind and torch's functions in its traceback."""
    torchs = [frame for frame in frames if owner_of_file(frame.filename) == "framework"]
    through = {(Path(frame.filename).name, frame.name) for frame in torchs}
    files = {file for file, _ in through}
    if isinstance(error, GuardOnDataDependentSymNode) or _reads(error):
        return UnimplementedError, _UNREAD
    if any(file == "distributed_c10d.py" and "_object" in name for file, name in through):
        return UnimplementedError, _OBJECTS
    if any("/nested/" in frame.filename for frame in torchs):
        return UnimplementedError, _NESTED
    if ("distributed.py", "__init__") in through and isinstance(error, RuntimeError):
        return UnimplementedError, _WRAPPED
    if any(name in ("init_process_group", "_new_process_group_helper") for _, name in through):
        return ConflictError, _GROUP
    if "device_mesh.py" in files and isinstance(error, KeyError | TypeError | ValueError | RuntimeError):
        return InvalidArgumentError, _AXES
    if "eval_frame.py" in files and "dynamo-optimized" in str(error):
        return UnimplementedError, _COMPILED
    return (UnimplementedError, _by_op(error)) if isinstance(error, UnsupportedOperatorException) else None


def _reads(error: Exception) -> bool:
    """Returns True for reads of a value that fail before torch raises its own error."""
    said = (
        ".numpy() is not supported for tensor subclasses",
        "FakeTensor.__format__",
        "SymFloat.__format__",
        "SymInt.__format__",
    )
    return any(words in str(error) for words in said)


def _by_op(error: Any) -> str:
    name = str(error.func)
    return _COALESCED if "coalesced" in name else _NESTED if "nested" in name else _UNKNOWN


def _line(error: Exception) -> str:
    own = user_frames(traceback.extract_tb(error.__traceback__))
    return (
        f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}: {own[-1].line}" if own else "no source line"
    )
