"""The directive `op-table`: each name of torch that stands for ops, with what `samebits ops` says of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.nn.utils.rnn
import torch.signal.windows
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from samebits.cli._reports import ops_overview
from samebits.determinism import table

NAMESPACES = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn": torch.nn,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.sparse": torch.sparse,
    "torch.signal.windows": torch.signal.windows,
    "torch.nn.utils.rnn": torch.nn.utils.rnn,
}
"""As a person types them; the ops of aten that none of their names stands for follow as `aten::NAME`."""
ANSWERS = ("run again", "threads", "any CPU", "GPU")
# torch takes milliseconds for its list of ops, which is the same for each of a thousand rows
ops_overview.not_reviewed = cache(ops_overview.not_reviewed)
PLAIN = {ops_overview.EQUAL, ops_overview.EQUAL + ops_overview.UNMEASURED, "-"}
"""Answers that need no reason."""

SEARCH = """<form id="op-search" role="search" aria-label="Ops" hidden>
<label for="op-name">Name of a function, method, module or op</label>
<input id="op-name" type="search" autocomplete="off" spellcheck="false" placeholder="torch.linalg.svd">
<label><input id="op-raises" type="checkbox"> only what raises somewhere</label>
<output id="op-count" for="op-name op-raises" aria-live="polite"></output>
</form>
"""
"""Shown by `op-table.js`: without JavaScript there is the table alone."""


def groups() -> dict[tuple[str, ...], list[str]]:
    """Returns the names that stand for the same ops, in the order of the first name of each group."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in _names():
        found.setdefault(table.ops_of(name), []).append(name)
    for op in sorted(table._torch_names.known_ops()):
        if (op,) not in found and not op.endswith("_"):
            found[op,] = [f"aten::{op}"]
    return {ops: names for ops, names in found.items() if ops}


def _names() -> Iterator[str]:
    for prefix, namespace in NAMESPACES.items():
        for name, value in inspect.getmembers(namespace):
            is_layer = inspect.isclass(value) and issubclass(value, torch.nn.Module)
            if callable(value) and not name.startswith("_") and (is_layer or not inspect.isclass(value)):
                yield f"{prefix}.{name}"


def answers(ops: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the worst answer of the ops' overloads for each of ANSWERS, and why they are not all equal."""
    found = [entries for op in ops for entries in ops_overview._overloads(op)]
    cells = [(*ops_overview._promises(cpu), ops_overview._on_gpu(cuda)) for cpu, cuda in found]
    worst = [ops_overview._worst(column) for column in zip(*cells, strict=True)]
    lines = [
        line
        for (cpu, cuda), (again, threads, _, gpu) in zip(found, cells, strict=True)
        for line in (
            *([] if {again, threads, gpu} <= PLAIN else [ops_overview._reason(cpu, cuda)]),
            *ops_overview._refusal(cpu),
        )
    ]
    return worst, list(dict.fromkeys(lines))


def row(ops: tuple[str, ...], names: list[str]) -> str:
    """Returns a row of the table as HTML; empty if the ops have no kernel for a CPU."""
    worst, reasons = answers(ops)
    cells = "".join(map(_cell, ANSWERS, worst))
    shown = " ".join(f"<code>{escape(name)}</code>" for name in names)
    why = "<br>".join(map(escape, reasons))
    return f'<tr><th scope="row">{shown}</th>{cells}<td class="why">{why}</td></tr>' if worst else ""


def _cell(head: str, answer: str) -> str:
    kind = ' class="raises"' if answer == ops_overview.RAISES else ""
    return f'<td data-head="{head}"{kind}>{escape(answer)}</td>'


class OpTable(SphinxDirective):
    """The table, with the field that filters it, which appears where JavaScript runs."""

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        for file in (Path(__file__), *Path(table.__file__).parent.iterdir()):
            self.env.note_dependency(str(file))
        names = ("name", *ANSWERS, "why, and what to use instead")
        heads = "".join(f'<th scope="col">{name}</th>' for name in names)
        table_ = "\n".join(
            (
                f"<thead><tr>{heads}</tr></thead><tbody>",
                *(row(*group) for group in groups().items()),
                "</tbody>",
            )
        )
        text = f'{SEARCH}<table id="op-table">{table_}</table>'
        return [nodes.raw("", text, format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("op-table", OpTable)
    app.add_js_file("op-table.js", loading_method="defer")
    return {"parallel_read_safe": True}
