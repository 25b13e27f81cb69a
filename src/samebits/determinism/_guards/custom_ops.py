"""Custom ops: only their author knows whether they are deterministic, and declares it with `declare_op`.

Under the switch an undeclared op warns at its first call and is named in the record; one declared
nondeterministic raises. An aten overload that the op table does not have (of a torch that was not reviewed,
or of an extension) warns, too. Each such op gets an override that removes itself when it has warned, so that
other ops, and later calls of this one, cost what they did.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from samebits._context import process
from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits._inspect.words import words
from samebits.determinism import _reviewed_schemas as reviewed_schemas
from samebits.determinism._dispatcher import KernelOverrides, has_kernel, overload
from samebits.determinism._environment import TESTED_TORCH
from samebits.determinism._warn_once import warn_once
from samebits.errors import (
    InvalidArgumentError,
    UndeclaredOpWarning,
    UnimplementedError,
    UnimplementedWarning,
    UnreviewedOpWarning,
)

# A user's own Triton kernel with atomics: they run in no fixed order. (Written from Triton's source; no GPU
# has run it.)


_ATOMIC = re.compile(r"\batomic_\w+")


def watch_triton_atomics(patches: Patches, jit: ModuleType) -> None:
    """Checks each kernel of a user's at its first launch; `jit` is `triton.runtime.jit`, once imported."""
    patches.put(jit.JITFunction, "run", _check_at_launch(jit.JITFunction.run))


def _check_at_launch(run: Callable[..., Any]) -> Callable[..., Any]:
    seen: set[int] = set()

    @functools.wraps(run)
    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen:
            seen.add(id(self))
            _check_kernel(self)
        return run(self, *args, **kwargs)

    return launched


def _check_kernel(kernel: Any) -> None:
    atomics = sorted({name for source in _sources(kernel, set()) for name in _ATOMIC.findall(source)})
    if atomics:
        name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
        text = (
            f"the Triton kernel {name}, launched at {calling_line()} under op determinism, uses "
            f"{', '.join(atomics)}: floating-point atomics are added in no fixed order. Let each program "
            "write its own result and reduce these in a second kernel; atomics on integers repeat."
        )
        warn_once(name, text, UndeclaredOpWarning)


def _sources(kernel: Any, seen: set[int]) -> Iterator[str]:
    """Yields the sources of a kernel and of the jitted functions that it calls by a global name."""
    if id(kernel) in seen:
        return
    seen.add(id(kernel))
    yield kernel.src
    for name in kernel.fn.__code__.co_names:
        called = kernel.fn.__globals__.get(name)
        if type(called) is type(kernel):
            yield from _sources(called, seen)


TORCH_NAMESPACES = words(
    """
    aten prim prims debugprims rngprims inductor inductor_prims _inductor_test quantized _quantized
    quantization quantized_decomposed onednn mkldnn mkldnn_prepacked mkl prepacked xnnpack _nnpack sparse
    static_runtime tensorexpr profiler c10d c10d_functional _c10d_functional _c10d_functional_autograd
    symm_mem fsdp _dtensor dtensor streams export onnx onnx_symbolic flex_lib _native _test debug_mode_ops
    higher_order cuda cudnn mps metal vulkan vulkan_prepack xpu _torch_testing _native_aot coor flex_gemm
    mempool
    """
)
"""Namespaces that torch itself registers, at import or later; torchvision and the like are others."""
_KNOWN_NAMESPACES = TORCH_NAMESPACES | {"samebits"}
"""With the stateless draws, which depend on their arguments only, not on the number of threads."""

_KEYS = (
    *("CPU", "CUDA", "XPU", "MPS", "PrivateUse1", "SparseCPU", "SparseCUDA", "QuantizedCPU", "QuantizedCUDA"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
"""Dispatch keys with a custom op's kernels; one of these runs at every call, below autograd."""
_NAME = re.compile(r"\w+::\w+")

_declared: dict[str, bool] = {}
_watched: dict[str, KernelOverrides] = {}
_known_modules = 0
"""len(sys.modules) at the last check: an extension that registers ops is nearly always a module."""


def declare_op(name: str, *, deterministic: bool) -> None:
    """Declares whether equal inputs of a custom op (`namespace::name`, all its overloads) give equal bits.

    May be called before the op is registered. A declared op does not warn under op determinism; one that is
    declared nondeterministic raises `UnimplementedError` when it is called there.

    Raises:
        InvalidArgumentError: the name has another form, or is that of a torch op (see `samebits ops`).

    Example:
        >>> schema = "(Tensor x) -> Tensor"
        >>> op = torch.library.custom_op("mine::atomic", torch.square, mutates_args=(), schema=schema)
        >>> samebits.declare_op("mine::atomic", deterministic=False)
        >>> with samebits.enable_op_determinism():
        ...     op(torch.ones(2))
        Traceback (most recent call last):
            ...
        samebits.errors.UnimplementedError: mine::atomic, ... is declared nondeterministic ...
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"declare_op({name!r}): an op is named 'namespace::name', without its overload."
        )
    if name.partition("::")[0] in TORCH_NAMESPACES:
        raise InvalidArgumentError(
            f"declare_op({name!r}): torch's own ops have their verdict in the op table."
        )
    _declared[name] = deterministic
    for full in [full for full in _watched if _packet(full) == name]:
        _watched.pop(full).remove()
    if process.op_determinism is not None:
        _watch(full for full in torch._C._dispatch_get_all_op_names() if _packet(full) == name)


def declaration_of(name: str) -> bool | None:
    """Returns True if an op that is not aten's (`namespace::name`) is deterministic; None if undeclared.

    Those of torch's other namespaces, and of samebits, are deterministic.
    """
    return _declared.get(name, True if name.partition("::")[0] in _KNOWN_NAMESPACES else None)


def watch(patches: Patches) -> None:
    """Watches every custom op that is registered, and those to come. For the switch."""
    watch_new_ops(anyway=True)
    patches.put(torch.library.Library, "impl", _watch_impl(torch.library.Library.impl))
    owner = type(torch.ops)
    patches.put(owner, "load_library", _watch_load(owner.load_library))
    patches.when_imported("triton.runtime.jit", lambda module: watch_triton_atomics(patches, module))


def unwatch() -> None:
    """Removes every override."""
    while _watched:
        _watched.popitem()[1].remove()


def watch_new_ops(*, anyway: bool = False) -> None:
    """Watches ops that C++ extensions registered since the last check; between two steps (0.1 us if none)."""
    global _known_modules
    if anyway or len(sys.modules) != _known_modules:
        _known_modules = len(sys.modules)
        _watch(torch._C._dispatch_get_all_op_names())


def _is_known(full: str) -> bool:
    namespace = full.partition("::")[0]
    return reviewed_schemas.is_reviewed(full) if namespace == "aten" else namespace in _KNOWN_NAMESPACES


def _packet(full: str) -> str:
    return full.partition(".")[0]


def _watch(names: Iterable[str]) -> None:
    for full in names:
        if _is_known(full) or full in _watched or _declared.get(_packet(full)):
            continue
        _watched[full] = KernelOverrides()
        for key in _KEYS:
            if has_kernel(full, key):
                _watched[full].replace(full, key, _first_call(full))


def _first_call(full: str) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        _judge(full)
        _watched[full].remove()  # stays known: an op is watched once
        return overload(full)(*args, **kwargs)

    return called


def _judge(full: str) -> None:
    name, settings = _packet(full), process.op_determinism
    if full.startswith("aten::"):
        text = (
            f"{full}, called at {calling_line()} under op determinism, is not reviewed: it is in no op table "
            f"(those of torch {', '.join(TESTED_TORCH)}; this is {torch.__version__}), so it is not known "
            "whether its bits repeat. `samebits verify` proves it of your script; `samebits ops` lists what "
            "is not reviewed."
        )
        warn_once(full, text, UnreviewedOpWarning)
        return
    if name not in _declared:
        text = (
            f"{name}, called at {calling_line()} under op determinism, is no op of torch's, and it was not "
            f"declared whether it is deterministic. Say so: samebits.declare_op({name!r}, "
            "deterministic=True), or False to have it refused."
        )
        warn_once(name, text, UndeclaredOpWarning)
        return
    text = f"{name}, called at {calling_line()}, is declared nondeterministic (samebits.declare_op)"
    if settings is not None and settings.on_unimplemented == "raise":
        raise UnimplementedError(
            f"{text}. Use another op, or enable_op_determinism(on_unimplemented='warn')."
        )
    warn_once(name, f"{text}. It runs all the same (on_unimplemented='warn').", UnimplementedWarning)


def _watch_impl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def impl(self: torch.library.Library, op_name: Any, *args: Any, **kwargs: Any) -> None:
        name = op_name if isinstance(op_name, str) else op_name.name()
        full = name if "::" in name else f"{self.ns}::{name}"
        if full in _watched:
            _watched.pop(full).remove()  # first: torch 2.11 takes it for a kernel of the user's
        original(self, op_name, *args, **kwargs)
        if not _is_known(full):
            _watch([full])

    return impl


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_library(self: Any, path: Any) -> None:
        original(self, path)
        watch_new_ops(anyway=True)

    return load_library
