"""Each formulation on the GPU: bits over twenty runs, values against float64 on the CPU, its other forms, and its cost.

A case is a sample, and counts for the overloads that the sample covers. Its figures are what `adopt` records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import torch

from samebits._byte_digest import of_bytes
from samebits.determinism import _cuda_decompositions as cuda_decompositions
from samebits.determinism import enable_op_determinism
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._dispatcher import has_kernel
from samebits.random import set_random_seed
from samebits.selfcheck.case import Case, Measured, Results, Target
from samebits.selfcheck.parts.switch import check
from samebits.selfcheck.parts.switch.samples import SAMPLES, FormulationSample, Maker

PREFIX = "formulation: "
COVERS, RATIO = "covers", "ratio to the refused kernel"
"""Names of figures that `adopt` reads: overloads apart by blanks, and our time over that of torch's kernel."""
SOURCES_CASE, SOURCES = "every formulation stands before a kernel", "formulations"
"""The case and its figure that identify the code that was run."""
_RUNS = 20
_SECONDS = 0.03
_NO_KERNEL = "torch has no kernel of it on this device"
_SHARED = tuple(f"_kernels/{name}.py" for name in ("out_argument", "indexing/put", "indexing/max_unpool"))
"""Files of the formulations that the CPU's kernels use too."""
_BACKEND = "lanczos"
"""In the name of the one op that a torch may have on the CPU only."""


def cases() -> Iterator[Case]:
    """Yields one case for each sample, and two about all of them."""
    kernels = {it.op: True for it in REPLACEMENTS if _BACKEND not in it.op}
    yield Case(SOURCES_CASE, _kernels, _all_true, example=kernels)
    yield Case(
        "the switch installs what is verified", _installed, _all_true, 240, example={SAMPLES[0].name: True}
    )
    for sample in SAMPLES:
        yield Case(f"{PREFIX}{sample.name}", partial(_measure, sample), judge, 240)


def _measure(sample: FormulationSample, target: Target) -> Measured:
    if not check.runs_on(sample, target.device):
        return Measured({"checked": _NO_KERNEL})
    results: Results = {"different results": {}, "error over what is allowed": {}, "forms": {}}
    errors = []
    for large in (False,) if target.small else (False, True):
        for dtype in sample.dtypes:
            one = check.run_sample(
                sample, Maker(target.device, dtype, large=large), 3 if target.small else _RUNS
            )
            title = f"{str(dtype).removeprefix('torch.')} {'large' if large else 'small'}"
            results["different results"][title] = one.results
            results["error over what is allowed"][title] = one.error / one.allowed
            errors.append(f"{title} {one.error:.1e}")
    results["forms"] = _forms(sample, target.device)
    maker = Maker(target.device, torch.float32, large=not target.small)
    ratio = check.ratio(sample, maker, 0.0 if target.small else _SECONDS)
    figures: dict[str, float | str] = {
        RATIO: ratio,
        COVERS: " ".join(sample.covers),
        "largest errors": ", ".join(errors),
    }
    return Measured(results, figures)


def judge(results: Results) -> Iterator[str]:
    """Yields each violation: several results, an error beyond the allowed one, a form with other bits than the
    functional one.
    """
    if set(results) == {"checked"}:
        if results["checked"] != _NO_KERNEL:
            yield f"it was not checked: {results['checked']}"
        return
    for title, number in results["different results"].items():
        if number != 1:
            yield f"{title}: {_RUNS} runs gave {number} different results"
    for title, share in results["error over what is allowed"].items():
        if not share <= 1:
            yield f"{title}: {share:.3g} times the error that is allowed, against float64 on the CPU"
    for op, same in results["forms"].items():
        if not same:
            yield f"{op} has not the bits of the functional form"


def _forms(sample: FormulationSample, device: str) -> dict[str, bool]:
    """Returns True for each overload that the sample covers if, through the dispatcher, it has the bits of the one called."""
    args = sample.make(Maker(device, torch.float32))
    with check.install_formulations(device):
        expected = check.call(sample.call, args)
        return {op: check.same_bits(check.call(op, args), expected) for op in sample.covers}


def _kernels(target: Target) -> Measured:
    key = target.device.upper()
    results = {it.op: has_kernel(it.op, key) for it in REPLACEMENTS if _BACKEND not in it.op}
    absent = [it.op for it in REPLACEMENTS if _BACKEND in it.op and not has_kernel(it.op, key)]
    return Measured(results, {"on the CPU only": ", ".join(absent) or "none", SOURCES: sources()})


@cache
def sources() -> str:
    """Returns a text that changes with the code of the formulations."""
    folder = Path(cuda_decompositions.__file__).parent
    files = [*sorted(folder.glob("*.py")), *(folder.parent / name for name in _SHARED)]
    return of_bytes(*(file.read_bytes() for file in files)).split(":")[1][:16]


def _installed(target: Target) -> Measured:
    """Measures the overrides that load late under the switch, as if a GPU had verified every formulation."""
    results = {}
    here = [it.op for it in REPLACEMENTS if has_kernel(it.op, target.device.upper())]
    set_random_seed(0)
    for sample in (one for one in SAMPLES if check.runs_on(one, target.device)):
        args = sample.make(Maker(target.device, torch.float32))
        with check.install_formulations(target.device):
            expected = check.call(sample.call, args)
        with check.assume_verified(here), enable_op_determinism():
            results[sample.name] = check.same_bits(check.call(sample.call, args), expected)
    return Measured(results)


def _all_true(results: Results) -> Iterator[str]:
    for name, value in results.items():
        if value is not True:
            yield f"{name}: {value}"
