"""One op with its arguments in a file: saved where a script calls it, and called again by itself.

`python -m samebits.audit._trace.saved_op FILE SETTINGS` is a process that calls it. Tensors are in
safetensors, the rest in JSON: reading a file executes nothing of it but torch's op of that name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from samebits._objects.hashes import leaf, plain
from samebits.determinism import enable_op_determinism

_TYPES = (torch.dtype, torch.layout, torch.memory_format)
_ALIGNMENT = 64


class NotSavedError(Exception):
    """An argument that no file can hold; the text says which."""


def save_op(file: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], repeats: int) -> None:
    """Writes FILE.op.json and FILE.op.safetensors: the op, its arguments, and what it returns here.

    With `repeats` it is called so many times more, in this process: by itself a custom op may not be found.
    """
    found, tensors = _saved(func, args, kwargs)
    if repeats and not found["why_not"]:
        make = _maker(found, tensors)
        found["here"] = _digests(func, make, repeats)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        found["here, 1 thread"] = _digests(func, make, repeats)
        torch.set_num_threads(threads)
    given = tree_leaves((args, kwargs))
    result = func(*args, **kwargs)
    for number, one in enumerate(_outputs(result, given)):
        tensors[f"out.{number}"] = one.detach().clone().contiguous()
    save_file(tensors, f"{file}.op.safetensors")
    Path(f"{file}.op.json").write_text(json.dumps(found), encoding="utf-8")


def _saved(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    storages: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    found: dict[str, Any] = {"op": func.name(), "why_not": ""}
    try:
        found["args"] = [_encoded(one, tensors, storages) for one in args]
        found["kwargs"] = {name: _encoded(one, tensors, storages) for name, one in kwargs.items()}
    except NotSavedError as error:
        return {**found, "why_not": str(error)}, {}
    return found, tensors


def varies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], repeats: int) -> bool:
    """Returns True if so many calls of an op with equal arguments give several results."""
    found, tensors = _saved(func, args, kwargs)
    return not found["why_not"] and len(set(_digests(func, _maker(found, tensors), repeats))) > 1


def _outputs(result: Any, given: list[Any]) -> list[torch.Tensor]:
    """Returns what an op returned, and the arguments, which it may have changed."""
    values = [*tree_leaves(result), *given]
    return [one for one in values if isinstance(one, torch.Tensor) and one.layout is torch.strided]


def _encoded(value: Any, tensors: dict[str, torch.Tensor], storages: dict[int, str]) -> Any:
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise NotSavedError(f"an argument is a {type(value).__name__} of layout {value.layout}")
        storage = value.untyped_storage()
        key = storages.setdefault(storage.data_ptr(), f"storage.{len(storages)}")
        if key not in tensors:
            tensors[key] = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage).clone()
        place = [list(value.shape), list(value.stride()), value.storage_offset()]
        return {"tensor": key, "dtype": str(value.dtype), "place": place}
    if isinstance(value, torch.Generator):
        key = f"generator.{len(tensors)}"
        tensors[key] = value.get_state()
        return {"generator": key}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, _TYPES):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, list | tuple):
        return [_encoded(one, tensors, storages) for one in value]
    if value is None or isinstance(value, int | str):
        return value
    raise NotSavedError(f"an argument is a {type(value).__name__}")


def _maker(found: dict[str, Any], tensors: dict[str, torch.Tensor], shift: int = 0) -> Callable[[], Any]:
    """Returns a function that makes the arguments anew; `shift` moves them by bytes from a multiple of 64."""

    def storage(key: str) -> torch.Tensor:
        saved = tensors[key]
        buffer = torch.empty(saved.numel() + 2 * _ALIGNMENT, dtype=torch.uint8, device=saved.device)
        first = -buffer.data_ptr() % _ALIGNMENT + shift
        return buffer[first : first + saved.numel()].copy_(saved)

    def decoded(value: Any, made: dict[str, torch.Tensor]) -> Any:
        if isinstance(value, list):
            return [decoded(one, made) for one in value]
        if not isinstance(value, dict):
            return value
        ((kind, given),) = [*value.items()][:1]
        if kind == "tensor":
            if given not in made:
                made[given] = storage(given)
            typed = made[given].view(getattr(torch, value["dtype"].removeprefix("torch.")))
            shape, stride, offset = value["place"]
            return typed.as_strided(shape, stride, typed.storage_offset() + offset)
        if kind == "generator":
            generator = torch.Generator()
            generator.set_state(tensors[given])
            return generator
        if kind == "float":
            return float.fromhex(given)
        return torch.device(given) if kind == "device" else getattr(torch, given.removeprefix("torch."))

    def make() -> tuple[list[Any], dict[str, Any]]:
        made: dict[str, torch.Tensor] = {}
        args = [decoded(one, made) for one in found["args"]]
        return args, {name: decoded(one, made) for name, one in found["kwargs"].items()}

    return make


def _digests(func: Any, make: Callable[[], Any], repeats: int) -> list[str]:
    """Returns a hash of all that the op gave, for each call."""
    found = []
    state = torch.get_rng_state()
    for _ in range(repeats):
        torch.set_rng_state(state)
        args, kwargs = make()
        found.append(_digest_of_call(func, args, kwargs))
    torch.set_rng_state(state)
    return found


def _digest_of_call(func: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    given = tree_leaves((args, kwargs))
    return digest_of(_outputs(func(*args, **kwargs), given))


def digest_of(outputs: list[torch.Tensor]) -> str:
    """Returns one hash of the outputs of an op."""
    return plain([leaf(one.detach()) for one in outputs]).hex()


def read_op(file: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Returns the JSON of a saved op and its outputs."""
    found = json.loads(Path(f"{file}.op.json").read_text(encoding="utf-8"))
    tensors = load_file(f"{file}.op.safetensors")
    return found, [tensors[f"out.{number}"] for number in range(len(tensors)) if f"out.{number}" in tensors]


def _overload(name: str) -> Any:
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def _in_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if value in (torch.float32, torch.bfloat16, torch.float16) else value


def main(file: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Calls the op of a file as `settings` say: "repeats", "threads", "shift", "switch", "flags"."""
    found = json.loads(Path(f"{file}.op.json").read_text(encoding="utf-8"))
    tensors = load_file(f"{file}.op.safetensors")
    func = _overload(found["op"])
    _apply(settings)
    make = _maker(found, tensors, settings.get("shift", 0))
    with ExitStack() as stack:
        if "switch" in settings:
            stack.enter_context(enable_op_determinism(across=settings["switch"]))
        result: dict[str, Any] = {"digests": _digests(func, make, settings["repeats"])}
    if settings.get("exact"):
        args, kwargs = tree_map(_in_double, make())
        given, _ = tree_flatten((args, kwargs))
        outputs = _outputs(func(*args, **kwargs), given)
        save_file({f"{n}": one.clone().contiguous() for n, one in enumerate(outputs)}, settings["exact"])
    return result


def _apply(settings: dict[str, Any]) -> None:
    flags = settings.get("flags", {})
    torch.set_num_threads(settings.get("threads") or flags.get("threads") or torch.get_num_threads())
    if not flags:
        return
    torch.use_deterministic_algorithms(flags["deterministic"], warn_only=True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = flags["fill_uninitialized_memory"]
    torch.set_float32_matmul_precision(flags["matmul_precision"])
    torch._C._set_mkldnn_enabled(flags["mkldnn"])
    torch._C._set_nnpack_enabled(flags["nnpack"])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
