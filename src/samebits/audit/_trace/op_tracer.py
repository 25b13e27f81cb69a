"""The ops of a step, as torch's dispatcher sees them: digests of what each reads and writes, and its place.

A mode of our own, not `torch.utils._debug_mode.DebugMode`, whose hashes (an L1 norm, an XOR) are equal for
permuted elements and flipped signs, which keeps all in memory, and knows neither generators nor saved inputs.
Below the dispatcher (compiled kernels, C++ that writes by pointer) nothing is seen but what comes out of it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, Any

import torch
import torch.utils.deterministic
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits._context import process
from samebits._inspect.user_code import calling_frame, line_of_frame, outwards, owner_of_frame
from samebits._objects.hashes import leaf
from samebits._objects.rng_states import of_generator

UNWRITTEN = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
        "_empty_affine_quantized",
        "empty_quantized",
    ]
)
"""Ops of aten whose output has what was in memory before."""

RECEIVING = frozenset({"recv_", "recv_any_source_"})
"""Ops of c10d whose output comes later."""

_deterministic: Any = torch.utils.deterministic
_HOOKS = "samebits.audit._record.torch_hooks"
_READERS = (
    *("samebits.audit", "samebits.checkpoint", "samebits.train", "samebits.state"),
    *("samebits._objects", "samebits._digest"),
)


class Lines:
    """The lines of a trace file, written as they come: a step may have more than memory holds."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, **values: Any) -> None:
        """Writes one line; in a step of a `samebits.Run` with its number, and the part of it: a shard's."""
        if process.position is not None:
            validates = ("validation",) if process.position.inside else ()
            values["part"] = [process.position.step, *(validates or process.rank_key)]
        self._file.write(json.dumps(values, separators=(",", ":")) + "\n")


class _Blank:
    """Memory that an op took and did not write: which of its elements were written since."""

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.number, self.itemsize, storage = number, tensor.itemsize, tensor.untyped_storage()
        self.storage = StorageWeakRef(storage)
        self.written = torch.zeros(storage.nbytes() // tensor.itemsize, dtype=torch.bool)


class OpTracer(TorchDispatchMode):
    """Writes a line for each op. `before` gets the number, the op and its arguments; True: it varies."""

    def __init__(
        self,
        lines: Lines,
        statement_of: Callable[[Any], list[int] | None],
        before: Callable[[int, Any, tuple[Any, ...], dict[str, Any]], bool],
    ) -> None:
        super().__init__()
        self._lines = lines
        self._statement_of = statement_of
        self._before = before
        self._ops = 0
        self.in_optimizer = False
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._writers: dict[int, int] = {}
        """Address of a storage to the number of the op that wrote to it last."""
        self._blank: dict[int, _Blank] = {}
        """Address of a storage to what an op of `UNWRITTEN` took there."""
        self.fill = False
        """Memory is filled with zeros where an op takes it."""
        self._forwards: dict[int, tuple[str, str]] = {}
        """Number of an autograd node to the line and module of the op that made it."""
        self._flags: dict[str, Any] = {}
        self._handles: list[Any] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as it does without a mode (torch 2.13: `torch._dynamo`)."""
        return True

    def start(self) -> None:
        """Turns the mode on, and the hooks that know the module."""
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self.__enter__()

    def stop(self) -> None:
        """Turns both off."""
        self.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        caller = None if func.namespace == "profiler" else _caller()
        if caller is None:
            return func(*args, **kwargs)
        frame, sums = caller
        node = torch._C._current_autograd_node()
        number, self._ops = self._ops, self._ops + 1
        self._note_flags()
        line = self._line(frame, func, args, kwargs)
        if sums or (node is not None and node.name() == "torch::autograd::AccumulateGrad"):
            line["sums"] = True  # of gradients
        if self._before(number, func, args, kwargs):
            line["varies"] = True
        result = func(*args, **kwargs)
        try:
            line["o"] = self._results(number, func, args, kwargs, result)
        except Exception as error:  # a tensor that cannot be read: the program goes on
            line |= {"o": [], "failed": repr(error)}
        self._lines.add(**line)
        return result

    def _results(
        self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[Any]:
        """Returns what an op gave and what it changed, and notes who wrote it."""
        name = func.name().partition("::")[2].partition(".")[0]
        works = tree_leaves(result) if name not in RECEIVING | {"send"} else []  # gloo waits for these once
        for one in works:
            if not isinstance(one, torch.Tensor) and hasattr(one, "wait"):
                one.wait()  # a collective's: its output is there afterwards
        given = {_address(one) for one in _tensors((args, kwargs))}
        mutated = [*_mutated(func, args, kwargs)]
        views = [one for one in _tensors(result) if _address(one) in given and not mutated]
        made = [one for one in _tensors(result) if _address(one) not in given]
        if is_unwritten(func):
            self._take_memory(number, [*made, *mutated])
            return [None] * len([*made, *mutated])
        self._note_writes(number, made, mutated)
        seen = [None if self._blank_part(one) is not None else _described(one) for one in views]
        changed = [None if name in RECEIVING else _described(one) for one in mutated]
        return [*seen, *map(_described, made), *changed]

    def _take_memory(self, number: int, tensors: list[torch.Tensor]) -> None:
        """Notes memory that nobody has written yet."""
        for one in tensors:
            if (address := _address(one)) is not None:
                if self.fill:
                    one.zero_()
                self._writers[address] = number
                self._blank[address] = _Blank(number, one)

    def _note_writes(self, number: int, made: list[torch.Tensor], mutated: list[torch.Tensor]) -> None:
        for one in (*made, *mutated):
            if (address := _address(one)) is not None:
                self._writers[address] = number
                if (written := self._written_of(one)) is not None:
                    written.fill_(True)
        for one in made:
            self._blank.pop(_address(one) or -1, None)

    def _written_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns which elements of a tensor were written; None: its memory is not such that it is known."""
        blank = self._blank.get(_address(tensor) or -1)
        if blank is None or blank.storage.expired() or blank.itemsize != tensor.itemsize:
            return None
        try:
            return blank.written.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        except Exception:  # the storage was made larger; another mode of the program's
            return None

    def _blank_part(self, tensor: torch.Tensor) -> int | None:
        """Returns the op that took the memory of a tensor, if nobody has written all of it."""
        written = self._written_of(tensor)
        return None if written is None or bool(written.all()) else self._blank[_address(tensor) or -1].number

    def _line(
        self, frame: FrameType, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        node = torch._C._current_autograd_node()
        phase = "backward" if node is not None else "optimizer" if self.in_optimizer else "forward"
        at, module, forward = line_of_frame(frame), "/".join(self._modules[-1:]), ""
        if node is None:
            self._forwards.setdefault(torch._C._autograd._get_sequence_nr() - 1, (at, module))
        else:
            forward, module = self._forwards.get(node._sequence_nr(), ("", ""))
            if not _waits_for_engine(frame):  # a hook's, or that of a user's own `backward`
                forward = ""
        inputs, scalars = [], []
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, torch.Tensor):
                writer = self._writers.get(_address(one) or -1)
                inputs.append([*_described(one), writer, self._blank_part(one)])
            else:
                scalars.append(_scalar(one))
        found = {"k": "op", "n": func.name(), "p": phase, "m": module, "at": at, "i": inputs, "s": scalars}
        if forward:
            found["fw"] = forward
        if (statement := self._statement_of(frame)) is not None:
            found["st"] = statement
        if torch.Tag.nondeterministic_seeded in func.tags:
            found["g"] = _generator(args, kwargs).hex()
        return found

    def _note_flags(self) -> None:
        now = flags()
        if now != self._flags:
            self._flags = now
            self._lines.add(k="flags", f=now)

    def _enter_module(self, module: torch.nn.Module, _inputs: Any) -> None:
        if id(module) not in self._names:
            root = self._modules[-1] if self._modules else _variable(module) or type(module).__name__
            for path, part in module.named_modules():
                self._names.setdefault(id(part), f"{root}.{path}" if path else root)
        self._modules.append(self._names[id(module)])

    def _leave_module(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._modules:
            self._modules.pop()


def is_unwritten(func: Any) -> bool:
    """Returns True for an op of `UNWRITTEN`."""
    return func.name().partition("::")[2].partition(".")[0] in UNWRITTEN


def _caller() -> tuple[FrameType, bool] | None:
    """Returns the user's frame of an op, and True for the ordered sum; None for this package's readers."""
    sums = False
    for one in outwards(sys._getframe(2)):
        owner, module = owner_of_frame(one), str(one.f_globals.get("__name__"))
        if owner == "samebits" and module != _HOOKS:
            if module.startswith(_READERS):
                return None
            sums = module.startswith("samebits.distributed")
            break
        if owner in ("user", "installed"):
            break
    return calling_frame(), sums


def _waits_for_engine(frame: FrameType) -> bool:
    """Returns True if the code of a frame called the autograd engine (on CUDA: its thread has no frame)."""
    inner = itertools.takewhile(
        lambda one: one.f_code.co_name != "_engine_run_backward", outwards(sys._getframe(1))
    )
    return frame not in inner


def flags() -> dict[str, Any]:
    """Returns the settings of torch that choose kernels."""
    backends = torch.backends
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill_uninitialized_memory": _deterministic.fill_uninitialized_memory,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "nnpack": torch._C._get_nnpack_enabled(),
        "tf32": [torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()],
        "cudnn": [backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic],
        "sdp": [torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled()],
    }


def _variable(module: torch.nn.Module) -> str | None:
    frame = calling_frame()
    for variables in (frame.f_locals, frame.f_globals):
        for name, value in variables.items():
            if value is module and name != "self":
                return name
    return None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    if "c10d" in func.namespace:  # what a collective receives, its schema does not always say
        yield from _tensors((args, kwargs))
        return
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[at] if at < len(args) else kwargs.get(argument.name))


def _described(tensor: torch.Tensor) -> list[Any]:
    """Returns [type, shape, hash]."""
    kind = str(tensor.dtype).removeprefix("torch.")
    try:
        return [kind, [int(size) for size in tensor.shape], leaf(tensor).hex()]
    except Exception:  # no bytes that can be read: fake, nested, of a class of its own, ...
        return [kind, [], ""]


def _address(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:
        return None


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    if value is None or isinstance(value, int | str | complex | torch.dtype | torch.device | torch.layout):
        return repr(value)
    if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
        return leaf(torch.empty(0, dtype=torch.uint8).set_(value)).hex()
    return type(value).__name__


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Generator)]
    devices = [one.device for one in _tensors((args, kwargs))] or [kwargs.get("device")]
    if given:
        return of_generator(given[0])
    if getattr(devices[0], "type", devices[0]) == "cuda":
        return of_generator(torch.cuda.default_generators[torch.cuda.current_device()])
    return of_generator(torch.default_generator)
