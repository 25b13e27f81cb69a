"""Prints the facts of one section, computed with the samebits of a tree: python tools/golden/section.py SECTION TREE."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import samebits

MODULES = {
    **dict.fromkeys(("digits", "trainer", "language_model"), "examples"),
    **dict.fromkeys(("commits", "record", "steps"), "runs"),
    **dict.fromkeys(("draws", "seeds", "layers"), "randomness"),
    **dict.fromkeys(("pipelines", "loaders"), "inputs"),
    **dict.fromkeys(("replicas", "rounding"), "analysis"),
}


def digest(value: Any) -> str:
    """16 hexadecimal digits of the bits of a value: types, keys, dtypes, shapes, strides and bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()


def _parts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().resolve_conj().resolve_neg()
        yield f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode()
        row = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
        yield row.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        yield f"dict {len(value)}".encode()
        for key, item in value.items():
            yield from _parts(key)
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        yield f"list {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, float):
        yield value.hex().encode()
    elif value is None or isinstance(value, bool | int | str | np.generic):
        yield f"{type(value).__name__} {value!r}".encode()
    else:
        raise TypeError(f"golden: no digest for {type(value).__name__}")


def main() -> None:
    """Prints `section name digest` for each fact."""
    name, tree = sys.argv[1], Path(sys.argv[2]).resolve()
    used = Path(samebits.__file__).resolve()
    if not used.is_relative_to(tree / "src"):
        sys.exit(f"golden: samebits comes from {used}, not from {tree}")
    module = importlib.import_module(
        "machines" if name.startswith("machine_") else MODULES.get(name, "kernels")
    )
    facts = module.SECTIONS[name]
    seen = set()
    for fact, value in facts(tree):
        if fact in seen:
            sys.exit(f"golden: two facts are called {fact}")
        seen.add(fact)
        print(f"{name} {fact.replace(' ', '_')} {digest(value)}", flush=True)
    os._exit(0)  # torch alone sometimes crashes while it is taken down after many Fourier transforms


if __name__ == "__main__":
    main()
