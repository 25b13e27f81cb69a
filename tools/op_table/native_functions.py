"""The kernels that torch has for each device, from the `native_functions.yaml` that every torch package brings.

The running torch knows only the devices it was built for; a torch for the CPU does not know those of CUDA. The file
is read line by line: it keeps one shape, and a YAML parser would be a dependency for one maintainer's command.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

FILE = Path(torch.__file__).parents[1] / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
COMPOSITE, EXPLICIT = "composite", "explicit"

COMPOSITES = {
    "CompositeImplicitAutograd": COMPOSITE,
    "CompositeExplicitAutograd": EXPLICIT,
    "CompositeExplicitAutogradNonFunctional": EXPLICIT,
}


def kernels(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the dispatch keys per overload (name without `aten::`) of the text of `native_functions.yaml`."""
    blocks = [_Block(block) for block in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]]
    by_name = {block.name: block for block in blocks}
    found = {block.name: _keys(by_name.get(block.delegate, block)) for block in blocks}
    for block in blocks:
        for name in block.autogen:  # generated: calls the written form, then copies
            found.setdefault(name, (EXPLICIT,))
    return found


class _Block:
    def __init__(self, text: str) -> None:
        self.name = text.split("(", 1)[0]
        self.delegate = _value(text, "structured_delegate")
        self.abstract = "  dispatch: {}" in text
        self.autogen = re.findall(r"[\w.]+", _value(text, "autogen"))
        listed = re.search(r"^  dispatch:.*\n((?:(?:    .*|\s*#.*)?\n)*)", text, flags=re.MULTILINE)
        lines = re.findall(r"^    ([\w, ]+):", listed.group(1), flags=re.MULTILINE) if listed else []
        self.keys = [key.strip() for line in lines for key in line.split(",")]
        if "  ufunc_inner_loop:" in text:  # the kernels of CPU and CUDA are generated from it
            self.keys += ["CPU", "CUDA"]


def _value(text: str, field: str) -> str:
    found = re.search(rf"^  {field}: *([^#\n]*)", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else ""


def _keys(block: _Block) -> tuple[str, ...]:
    if not block.keys:
        return () if block.abstract else (COMPOSITE,)
    kept = {COMPOSITES.get(key, key) for key in block.keys}
    return tuple(sorted(key for key in kept if key in COMPOSITES.values() or key.endswith(("CPU", "CUDA"))))
