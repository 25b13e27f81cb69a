"""One screen of the op table: each family of ops that most programs meet, and one op in full."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.determinism import table
from samebits.determinism._ops import coverage
from samebits.determinism._reviewed_schemas import not_reviewed
from samebits.determinism.table import Entry
from samebits.determinism.table import _verdict_names as verdict_names

FAMILIES = {
    "matrix products": "nn.Linear matmul mm bmm addmm einsum",
    "convolutions": "nn.Conv1d nn.Conv2d nn.Conv3d nn.ConvTranspose2d convolution_backward",
    "normalisation": "nn.BatchNorm2d nn.LayerNorm nn.GroupNorm nn.RMSNorm native_layer_norm_backward",
    "attention": "scaled_dot_product_attention nn.MultiheadAttention",
    "activations": "relu gelu silu sigmoid tanh softmax log_softmax elu softplus",
    "losses": "cross_entropy mse_loss l1_loss nll_loss binary_cross_entropy kl_div ctc_loss",
    "sums and statistics": "sum mean var std norm logsumexp cumsum amax",
    "arithmetic": "add sub mul div pow exp log sqrt clamp where",
    "indexing, embedding": "index_select gather scatter_add index_add index_put embedding sort topk",
    "pooling, resizing": "max_pool2d avg_pool2d adaptive_avg_pool2d interpolate grid_sample",
    "recurrent": "nn.LSTM nn.GRU nn.RNN",
    "random numbers": "rand randn randperm bernoulli dropout multinomial",
    "Fourier transforms": "fft.fft fft.rfft stft istft",
    "linear algebra": "linalg.inv linalg.solve linalg.det linalg.qr linalg.cholesky linalg.solve_triangular",
    "eigenvalues, SVD": "linalg.eigh linalg.eig linalg.svd linalg.pinv linalg.lstsq",
}
"""Names as a person types them; what is printed of them is looked up in the table."""
EQUAL, RAISES = "equal", "raises"
EXCEPT, UNMEASURED = "*", "?"
"""Marks behind `equal`: not for some arguments; not measured for some overloads."""
_MARKS = {
    EXCEPT: "* not for some arguments (complex numbers, or an alpha other than 1): the last column, or that "
    "of the op that it names, says which",
    UNMEASURED: "? nobody has measured it over threads",
}
_NOT_ON_GPU = "GPU: ? no GPU has run it; torch's documentation and source say so"
_REFUSED = (coverage.DENIED, coverage.INTEGERS)
_WORDS = {
    verdict_names.REFUSED: RAISES,
    verdict_names.UNWRITTEN: "unwritten",
    verdict_names.VARIES: "varies",
    verdict_names.NO_KERNEL: "-",
    verdict_names.NOT_REVIEWED: "not reviewed",
}
_STYLES = {RAISES: "red", "varies": "bold red", "not reviewed": "bold red"}
_BEST_FIRST = ("-", EQUAL, "unwritten", RAISES, "not reviewed", "varies")
_NO_KERNEL = "no kernel here has the same bits on every machine"
_MACHINE_WORDS = {
    coverage.EXACT: "torch's kernel stays: what it computes is the same on every CPU",
    coverage.INTEGERS: "torch's kernel stays for integers alone; other types raise",
    coverage.OURS: "samebits has a kernel",
    coverage.COMPOSED: "they call other ops",
    "": "no kernel for this device",
}
PLAIN_WIDTH = 110
"""Columns of a file or a pipe, which have no width of their own."""


def show_families(everything: Sequence[Entry]) -> None:
    """Prints the families, the refused ones with what to use instead, and the counts of the whole table."""
    console = _console()
    _say(
        console,
        f"torch's ops on a CPU: same inputs, same bits? (torch {torch.__version__}; the table was reviewed "
        f"with torch {table.reviewed().torch})\n",
    )
    rows = ((name, _examples(names), *_family(names.split())) for name, names in FAMILIES.items())
    _print_table(console, _table(("family", "for example", "run again", "threads", "any CPU"), rows))
    _say(
        console,
        '\nrun again: enable_op_determinism(). threads: across="threads". any CPU: across="machines".\n'
        f"* but not for some arguments of {', '.join(_varying(everything))}, and of what calls them "
        "(`samebits ops torch.add`).\n"
        "? never measured over threads for some overloads in this row (`samebits ops torch.sum`).",
    )
    _print_refusals(console, everything)
    _print_counts(console, everything)


def show_op(name: str, ops: Iterable[str]) -> None:
    """Prints the entries of `ops`, which `name` stands for: of each overload what is promised, and why."""
    console = _console()
    found = [entries for op in ops for entries in _overloads(op)]
    if not found:
        _say(console, f"{name}: torch {table.reviewed().torch} has no kernel of {', '.join(ops)} for a CPU")
        return
    _say(console, f"{name}: {', '.join(dict.fromkeys(f'aten::{_name(cpu)}' for cpu, _ in found))}\n")
    rows: dict[tuple[str, ...], list[str]] = {}
    for cpu, cuda in found:
        cells = (*_promises(cpu), _on_gpu(cuda), _reason(cpu, cuda))
        rows.setdefault(cells, []).append(cpu.op.removeprefix("aten::"))
    heads = ("overload", "run again", "threads", "any CPU", "GPU", "why")
    lines = ((", ".join(overloads), *cells) for cells, overloads in rows.items())
    _print_table(console, _table(heads, lines))
    marks = {mark for cells in rows for mark in EXCEPT + UNMEASURED if cells[1].endswith(mark)}
    lines = [text for mark, text in _MARKS.items() if mark in marks]
    lines += [_NOT_ON_GPU] * any(cells[3].endswith(UNMEASURED) for cells in rows)
    for line in dict.fromkeys((*lines, *(line for cpu, _ in found for line in _refusal(cpu)))):
        _say(console, line)


def show_machine(chosen: Sequence[Entry], *, raising: bool) -> None:
    """Prints the names of ops that are alike under `across="machines"`, or that raise, below the reason."""
    console = _console()
    groups: dict[str, dict[str, None]] = {}
    all_chosen = {entry.op.removeprefix("aten::") for entry in chosen}
    for entry in chosen:
        for reason in _machine_reasons(entry, raising=raising):
            groups.setdefault(reason, {})[_shortest(entry, all_chosen)] = None
    for reason, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        public = [name for name in names if not name.startswith("_") and "backward" not in name]
        inner = len(names) - len(public)
        text = ", ".join(public) + f" ({inner} internal ones)" * bool(inner)
        _say(console, f"{reason}\n  {text}\n")
    _say(console, f"{len(chosen)} overloads; the whole rows: --all")


def _shortest(entry: Entry, all_chosen: set[str]) -> str:
    """Returns the op's name where all its overloads are chosen, else that of the overload."""
    name = _name(entry)
    overloads = (one.op.removeprefix("aten::") for one, _ in _overloads(name))
    return name.removesuffix("_") if all_chosen.issuperset(overloads) else entry.op.removeprefix("aten::")


def _machine_reasons(entry: Entry, *, raising: bool) -> Iterator[str]:
    """Yields why an op is exact, ours, composed or refused; for a refused composite, why its parts are."""
    parts = table.refused_parts(entry.op)
    if parts:
        yield from dict.fromkeys(map(_family_and_reason, parts))
    elif entry.machine == coverage.DENIED or (raising and entry.raises == verdict_names.RAISING[0]):
        yield _family_and_reason(entry.op)
    elif raising and entry.raises == verdict_names.OF_COMPLEX:
        yield f"complex numbers alone: {coverage.refused_for('complex')['reason']}"
    else:
        yield _MACHINE_WORDS[entry.machine]


def _family_and_reason(op: str) -> str:
    group = coverage.refusal_group(op)
    return f"{group['family']}: {group['reason']}" if group["family"] else f"others: {_NO_KERNEL}"


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def _say(console: Console, text: str) -> None:
    """Prints lines that fit the width; what continues a line is indented as it is."""
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        print(textwrap.fill(line, console.width, subsequent_indent=indent, break_on_hyphens=False))


def _print_table(console: Console, made: Table) -> None:
    """Prints a table; without the spaces at the ends of lines where it is no terminal."""
    if sys.stdout.isatty():
        console.print(made)
        return
    with console.capture() as printed:
        console.print(made)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = Table(
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for head in heads:
        made.add_column(head, overflow="fold", no_wrap=head in {"run again", "threads", "any CPU", "GPU"})
    for row in rows:
        made.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return made


def _family(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the worst promise of a family's overloads, for each of the three columns, with its marks."""
    promises = [_promises(cpu) for name in names for op in table.ops_of(name) for cpu, _ in _overloads(op)]
    return tuple(map(_worst, zip(*promises, strict=True)))


def _worst(cells: Sequence[str]) -> str:
    word = max((cell.rstrip(EXCEPT + UNMEASURED) for cell in cells), key=_BEST_FIRST.index)
    return word + "".join(mark for mark in EXCEPT + UNMEASURED if any(mark in cell for cell in cells))


def _varying(everything: Sequence[Entry]) -> list[str]:
    """Returns the public ops whose own bits follow the number of threads for some arguments."""
    own = [entry for entry in everything if entry.rule != verdict_names.COMPOSITE]
    found = {_name(entry).removesuffix("_") for entry in own if entry.threads == "varies"}
    return sorted(name for name in found if not name.startswith("_") and not name.endswith("_backward"))


def _overloads(op: str) -> Iterator[tuple[Entry, Entry]]:
    """Yields the entries, CPU and CUDA, of the functional overloads that a program calls by this name."""
    rows = table.reviewed().rows
    for name in (*rows, *(full.removeprefix("aten::") for full in not_reviewed())):
        if name.partition(".")[0] != op or "imname" in name:
            continue
        if name not in rows or rows[name].is_called:
            cpu = table.lookup(name, "cpu")
            if cpu.verdict != verdict_names.NO_KERNEL:
                yield cpu, table.lookup(name, "cuda")


def _promises(cpu: Entry) -> tuple[str, str, str]:
    unmeasured = cpu.verdict == verdict_names.DETERMINISTIC and not cpu.threads
    mark = EXCEPT if cpu.threads == "varies" else UNMEASURED if unmeasured else ""
    return _verdict(cpu), _verdict(cpu) + mark, RAISES if cpu.machine in _REFUSED else EQUAL


def _on_gpu(cuda: Entry) -> str:
    word = _verdict(cuda)
    return word + UNMEASURED * (word == EQUAL and cuda.evidence != "battery")


def _verdict(entry: Entry) -> str:
    return _WORDS.get(entry.verdict, EQUAL)


def _name(entry: Entry) -> str:
    return entry.op.removeprefix("aten::").partition(".")[0]


def _reason(cpu: Entry, cuda: Entry) -> str:
    if cuda.verdict == verdict_names.REFUSED and cuda.reason != cpu.reason:
        return f"{cpu.reason}. GPU: {cuda.reason}"
    return cpu.reason


def _refusal(cpu: Entry) -> Iterator[str]:
    """Yields why `across="machines"` refuses the op, with what to use instead."""
    if cpu.raises == verdict_names.OF_COMPLEX:
        yield f"any CPU: {_name(cpu)} raises for complex numbers: {coverage.refused_for('complex')['reason']}"
    if cpu.machine not in _REFUSED:
        return
    if cpu.machine == coverage.INTEGERS:
        yield f"any CPU: {_name(cpu)} raises but for integers"
        return
    for part in table.refused_parts(cpu.op) or (cpu.op,):
        called = "" if part == cpu.op else f" calls {part}, which"
        reason = coverage.refusal_reason(part) or _NO_KERNEL
        yield f"any CPU: {_name(cpu)}{called} raises: {reason}"


def _examples(names: str) -> str:
    shown = [name.removeprefix("nn.").removeprefix("linalg.").removeprefix("fft.") for name in names.split()]
    return ", ".join(name for name in shown if not name.endswith("backward"))


def _print_refusals(console: Console, everything: Sequence[Entry]) -> None:
    _say(console, '\nWhat raises under across="machines", and what to use instead:')
    refused = {_name(entry) for entry in everything if entry.machine == coverage.DENIED}
    for group in coverage.refusal_groups():
        if any(coverage.refusal_reason(name) == group["reason"] for name in refused):
            _say(console, f"  {group['family']}: {group['reason']}")
    _say(console, "  complex numbers, torch.compile, TorchScript: docs/how-to/every-cpu.md")


def _print_counts(console: Console, everything: Sequence[Entry]) -> None:
    own = {device: [one for one in everything if one.device == device] for device in ("cpu", "cuda")}
    counts = {device: Counter(map(_verdict, entries)) for device, entries in own.items()}
    nobody = Counter(entry.device for entry in everything if entry.evidence == "none")
    on_gpu = sum(entry.device == "cuda" and entry.evidence == "battery" for entry in everything)
    machine = Counter(entry.machine for entry in everything if entry.machine)
    raising, partly = machine[coverage.DENIED], machine[coverage.INTEGERS]
    _say(
        console,
        f"\nOf {len(everything) // 2:,} overloads of aten, CPU: {counts['cpu'][EQUAL]:,} equal, "
        f"{counts['cpu'][RAISES]} raise, {counts['cpu']['unwritten']} return unwritten memory. Any CPU: "
        f"{machine.total() - raising - partly:,} equal, {raising} raise, {partly} raise but for integers. "
        f"GPU: {counts['cuda'][RAISES]} raise, {on_gpu} were seen equal on one, the rest is known by reading "
        "alone.\n"
        f"Measured or read in the source: all but {nobody['cpu']} (CPU) and {nobody['cuda']:,} (GPU), at "
        "which nobody has looked.\n\nOne op: samebits ops torch.svd. All that raise on any CPU: --machine "
        "refused. Every overload: --all.",
    )
