"""The cases of `make review` on the GPU: under the switch the same bits in twenty runs, or refused with a
cure.

Between the runs, memory is taken so that addresses move, the caches are filled with other bytes, and every fourth run
is on another stream, where cuSOLVER may take another algorithm: the bits of each stream are compared among themselves. The same without the switch shows how much of it would have varied, and the cost of the switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from lab.catalogue.battery import BATTERY
from lab.catalogue.case import ReviewCase as Reviewed
from lab.catalogue.case import Run, built_on
from lab.review.trace import Names
from samebits.determinism import enable_op_determinism
from samebits.errors import UnimplementedError
from samebits.random import set_random_seed
from samebits.selfcheck.case import Case, Measured, Results, Target
from samebits.selfcheck.parts.switch import attention
from samebits.selfcheck.parts.switch.repeating import (
    RepeatedCase,
    all_bits_equal,
    first_line_of,
    raise_if_fault,
    repeat_case,
)

SAME, REFUSED, ELSEWHERE = "the same bits", "refused with the way out", "does not run on this device"
NO_BACKEND = "torch offers no such backend under the switch"
_TORCHS_NO_BACKEND = "No available kernel"
"""torch's message where `sdpa_kernel` names a backend which it leaves out under its flag (cuDNN's)."""
EQUAL, VARYING = "overloads with equal bits", "overloads of what varied"
"""Figures that `adopt` reads: full names, apart by blanks."""
_NO_EXCUSE = ("determinis", "same device")
"""Words of errors that are wrong even where the case raises without the switch, too: a refusal, and a tensor on the CPU."""
_ELSEWHERE = frozenset({"compiled"})
"""Groups of the battery that another part checks: compiled code."""
_AT_ONCE = 12
"""Cases of the battery in one case of the self-check: a fault of the device loses them all."""
_CONTROL_RUNS = 60


def reviewed() -> list[Reviewed]:
    """Returns the cases, those for a GPU's attention included."""
    return [one for one in (*BATTERY, *attention.CASES) if one.group not in _ELSEWHERE]


def cases() -> Iterator[Case]:
    """Yields the battery, a dozen at a time."""
    for group in dict.fromkeys(one.group for one in reviewed()):
        members = [one for one in reviewed() if one.group == group]
        for number, some in enumerate(_batches(members), 1):
            example: Results = {one.name: SAME for one in some}
            yield Case(f"{group} {number}", partial(_measure, some), judge, 280, example=example)


def controls() -> Iterator[Case]:
    """Yields a case that varies without the switch: else twenty equal runs would prove nothing."""
    example: Results = {"something varied": True}
    yield Case(
        "control: sums by atomics vary without the switch", _control, _judge_control, 120, example=example
    )


def judge(results: Results) -> Iterator[str]:
    """Yields each op of the device that neither has the same bits nor is refused with a cure."""
    for name, word in results.items():
        if word not in {SAME, REFUSED, ELSEWHERE, NO_BACKEND}:
            yield f"{name}: {word}"


def _measure(some: Sequence[Reviewed], target: Target) -> Measured:
    results: Results = {}
    built: dict[str, list[Run]] = {}
    set_random_seed(0)
    for one in some:
        try:
            with built_on(target.device):
                built[one.name] = list(one.build())
        except Exception as error:
            results[one.name] = f"could not be built: {first_line_of(error)}"
    with enable_op_determinism():
        on = {name: _repeated(name, runs, target) for name, runs in built.items()}
        overloads = {name: _overloads(built[name], target) for name in on if on[name].error is None}
    off = {name: _repeated(name, runs, target) for name, runs in built.items()}
    results |= {name: word(on[name], off[name]) for name in built}
    return Measured(results, {**_figures(results, on, off), **_evidence(overloads, on)})


def _repeated(name: str, runs: Sequence[Run], target: Target) -> RepeatedCase:
    """Returns `repeat_case`; an error names the case in which a fault of the device came up."""
    try:
        return repeat_case(runs, target)
    except Exception as error:
        raise RuntimeError(f"{name}: {error}") from error


def _overloads(runs: Sequence[Run], target: Target) -> set[str]:
    """Returns the overloads that the samples of a case dispatch; nothing where they cannot run in the mode that lists them."""
    with Names() as names, torch.device(target.device):
        try:
            for run in runs:
                run()
        except Exception as error:
            raise_if_fault(error)
            return set()
    return set(names.seen)


def _evidence(overloads: Mapping[str, set[str]], on: Mapping[str, RepeatedCase]) -> dict[str, float | str]:
    """Returns the overloads that were dispatched in cases with equal bits, and those in cases with others."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for name, names in overloads.items():
        found[on[name].varied] |= names
    titles = {EQUAL: found[False] - found[True], VARYING: found[True]}
    return {title: " ".join(sorted(names)) for title, names in titles.items() if names}


def word(on: RepeatedCase, off: RepeatedCase) -> str:
    """Returns the word that is judged."""
    if on.error is None:
        return f"{on.others} of {len(on.seconds)} further runs had other bits" if on.varied else SAME
    text = str(on.error).strip().partition("\n")[0]  # the rest lists kernels, by the files that register them
    if isinstance(on.error, UnimplementedError):
        return REFUSED if "Use " in text else f"refused without the way out: {text}"
    if off.error is not None and not any(word in text for word in _NO_EXCUSE):
        return ELSEWHERE
    if _TORCHS_NO_BACKEND in text:
        return NO_BACKEND
    return f"under the switch {first_line_of(on.error)}"


def _figures(
    results: Results, on: Mapping[str, RepeatedCase], off: Mapping[str, RepeatedCase]
) -> dict[str, float | str]:
    """Returns counts, names, and the cost of the switch: the time of a run over that without it, medians."""
    varied = [name for name, one in off.items() if one.varied]
    figures: dict[str, float | str] = {
        "cases": len(results),
        "varied without the switch": f"{len(varied)} ({', '.join(varied)})" if varied else "0",
    }
    if names := [name for name, one in on.items() if one.on_another_stream]:
        figures["other bits on another stream"] = f"{len(names)} ({', '.join(names)})"
    for title, one in (("refused", REFUSED), ("no backend", NO_BACKEND)):
        if names := [name for name, found in results.items() if found == one]:
            figures[title] = f"{len(names)} ({', '.join(names)})"
    if names := [name for name, found in results.items() if found == ELSEWHERE]:
        why = [f"{name}: {first_line_of(off[name].error or ValueError())}" for name in names]
        figures["not on this device"] = f"{len(names)} ({', '.join(why)})"
    timed = [name for name in on if on[name].error is None and off[name].error is None]
    ratios = {name: median(on[name].seconds) / max(median(off[name].seconds), 1e-9) for name in timed}
    if ratios:
        worst = max(ratios, key=lambda name: ratios[name])
        figures |= {"cost, median": median(ratios.values()), "cost, most": ratios[worst], "of": worst}
    return figures


def _batches(members: Sequence[Reviewed]) -> Iterator[Sequence[Reviewed]]:
    return (members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE))


def _control(target: Target) -> Measured:
    """Measures sums of many numbers in few elements, without the switch: torch's kernels add with atomics."""
    draw = torch.Generator().manual_seed(0)
    source = torch.randn(1 << 20, generator=draw).to(target.device)
    index = torch.randint(8, (1 << 20,), generator=draw).to(target.device)
    empty = torch.zeros(8, device=target.device)
    sums: dict[str, Callable[[], Tensor]] = {
        "index_add": lambda: empty.index_add(0, index, source),
        "scatter_add": lambda: empty.scatter_add(0, index, source),
        "index_put": lambda: empty.index_put((index,), source, accumulate=True),
        "bincount": lambda: torch.bincount(index, source),
    }
    counts = {}
    for name, run in sums.items():
        first = run()
        counts[name] = sum(not all_bits_equal([first], [run()]) for _ in range(_CONTROL_RUNS))
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Measured(
        {"something varied": any(counts.values())}, {f"other bits in {_CONTROL_RUNS} runs": shown}
    )


def _judge_control(results: Results) -> Iterator[str]:
    if results["something varied"] is not True:
        yield "no sum varied without the switch: here equal runs prove nothing of atomics"
