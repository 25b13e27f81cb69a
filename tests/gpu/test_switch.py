"""The switch on a GPU: each op has the same bits run after run or is refused with a cure, and every formulation holds."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from statistics import median

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import formulation_check as check
import refused_calls
import samebits
from agreement import all_true, equal
from device_faults import is_fault
from formulation_samples import SAMPLES, Maker
from gpu_report import COVERS, EQUAL, RATIO, VARYING
from lab.catalogue.battery import BATTERY
from lab.catalogue.case import (
    ALL_DTYPES,
    BF16,
    F32,
    ReviewCase,
    backward,
    built_on,
    forward,
    integers,
    normal,
)
from lab.catalogue.elementwise import differing_elements
from lab.review.outcome import SEED, Names, disturb, with_memory
from samebits.determinism import _all_replacements as replacements
from samebits.determinism import enable_op_determinism
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._dispatcher import has_kernel
from samebits.determinism._guards import refused_ops
from samebits.determinism._replacement import Replacement
from samebits.errors import UnimplementedError


@pytest.fixture(autouse=True)
def _seeded():
    samebits.set_random_seed(0)


# --- the battery of ops: the same bits in twenty runs, or refused with a cure ---

RUNS, FEW = 20, 3
FILL = 1 << 26
"""Bytes that are written to fill the caches: more than the largest L2."""
AT_ONCE = 12
"""Cases of the battery in one test: a fault of the device loses them all."""
SAME, REFUSED, ELSEWHERE = "the same bits", "refused with the way out", "does not run on this device"
NO_BACKEND = "torch offers no such backend under the switch"
"""torch's message "No available kernel", where `sdpa_kernel` names a backend which it leaves out under its flag."""
NO_EXCUSE = ("determinis", "same device")
"""Words of errors that are wrong even where the case raises without the switch: a refusal, and a tensor on the CPU."""
ON_GPU = "attention on a GPU"
BACKENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, (BF16,)),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, (BF16, F32)),
    "cuDNN": (SDPBackend.CUDNN_ATTENTION, (BF16,)),
    "math": (SDPBackend.MATH, (BF16, F32)),
}


def attentions():
    for name, (backend, dtypes) in BACKENDS.items():

        def attend(q, k, v, causal=False, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        causal = lambda q, k, v, attend=attend: attend(q, k, v, causal=True)
        square = [normal(4, 8, 1024, 64)] * 3
        short = normal(1, 2, 16, 64), normal(1, 2, 8192, 64), normal(1, 2, 8192, 64)
        yield from backward(ON_GPU, f"{name} 4x8x1024x64", attend, *square, dtypes=dtypes)
        yield from backward(ON_GPU, f"{name} causal 4x8x1024x64", causal, *square, dtypes=dtypes)
        yield from backward(ON_GPU, f"{name} 16 queries, 8192 keys", attend, *short, dtypes=dtypes)


def _lstm(x, *weights):
    start = x.new_zeros(2, x.shape[1], 64)
    return torch.lstm(x, (start, start), list(weights), True, 1, 0.2, True, True, False)


def _ties(x):
    return (*x.topk(9), *x.sort(), x.median(), x.sort(stable=True).indices)


_gates = (normal(256, 64), normal(256, 64), normal(256), normal(256))
_near_one = normal(1 << 20, scale=0.01, shift=1.0)
ON_GPUS = (
    *attentions(),
    *backward(ON_GPU, "LSTM, both directions, dropout", _lstm, normal(50, 32, 64), *_gates, *_gates, dtypes=(F32, BF16)),
    *forward(ON_GPU, "bmm 2x16x65536x16", torch.bmm, normal(2, 16, 65536), normal(2, 65536, 16), dtypes=ALL_DTYPES),
    *backward(ON_GPU, "index_add into 8 rows", lambda x, i, s: x.index_add(0, i, s), normal(8, 4), integers(8, 1 << 18), normal(1 << 18, 4)),
    *backward(ON_GPU, "scatter_add into 8 places", lambda x, i, s: x.scatter_add(0, i, s), normal(8), integers(8, 1 << 20), normal(1 << 20)),
    *backward(ON_GPU, "embedding of 4 words", F.embedding, integers(4, 1 << 18), normal(4, 32), dtypes=(F32, BF16)),
    *forward(ON_GPU, "cumprod of one row", lambda x: x.cumprod(0), _near_one, dtypes=ALL_DTYPES),
    *forward(ON_GPU, "logcumsumexp of one row", lambda x: x.logcumsumexp(0), normal(1 << 20), dtypes=ALL_DTYPES),
    *forward(ON_GPU, "ties: topk, sort, median", _ties, lambda dtype: (normal(256, 4096)(dtype) * 2).round()),
)  # fmt: skip
"""Attention by each backend that a GPU has, and sums that are split there: cases that the catalogue has not."""
CASES = [one for one in (*BATTERY, *ON_GPUS) if one.group != "compiled"]
GROUPS = {
    group: [one for one in CASES if one.group == group] for group in dict.fromkeys(c.group for c in CASES)
}
BATCHES = {
    f"{group} {number}": members[start : start + AT_ONCE]
    for group, members in GROUPS.items()
    for number, start in enumerate(range(0, len(members), AT_ONCE), 1)
}


@dataclass
class RepeatedCase:
    """One case, run again and again with the switch on, or off."""

    others: int = 0
    """The number of runs without the bits of the first on the same kind of stream."""
    on_another_stream: bool = False
    """True if runs on a stream other than the default one have bits of their own."""
    seconds: list = field(default_factory=list)
    error: object = None


def repeated(name, runs, target):
    """Runs the samples of a case. An exception is kept; a fault of the device is raised, with the case's name."""
    found = RepeatedCase()
    try:
        for run in runs:
            _repeat(run, found, target)
    except Exception as error:
        if is_fault(error):
            raise RuntimeError(f"{name}: {error}") from error
        found.error = error.with_traceback(None)  # whose frames hold tensors
    return found


def _repeat(run, case, target):
    """Between the runs, memory is taken so that addresses move, the caches are filled with other bytes, and every fourth
    run is on another stream, where cuSOLVER may take another algorithm: each stream's bits are compared among themselves.
    """
    first = {}
    with torch.device(target.device):
        for number in range(FEW if target.small else RUNS):
            moved, side_stream = disturb(number), number % 4 == 3
            if number % 2 and not target.small:
                torch.full((FILL,), number, dtype=torch.uint8)
            aside = side_stream and target.device == "cuda"
            with torch.cuda.stream(_side_stream()) if aside else nullcontext():
                torch.manual_seed(SEED)
                _wait(target)
                start = time.perf_counter()
                output = run()
                _wait(target)
                seconds = time.perf_counter() - start
            del moved
            bits = leaves(output)
            if number:  # the time of the first is that of warming up
                case.seconds.append(seconds)
            case.others += not all_bits_equal(first.setdefault(side_stream, bits), bits)
            case.on_another_stream |= not all_bits_equal(first[False], first[side_stream])


def _wait(target):
    if target.device == "cuda":
        torch.cuda.synchronize()


@cache
def _side_stream():
    return torch.cuda.Stream()


def leaves(output):
    """The strided tensors of an output that hold bits; coalescing first would add the values that are compared."""
    found = []
    for x in pytree.tree_leaves(output):
        if isinstance(x, torch.Tensor):
            x = with_memory(x.detach())
            if x.layout is torch.sparse_coo:
                found += [x._indices(), x._values()]
            elif x.layout is torch.sparse_csr:
                found += [x.crow_indices(), x.col_indices(), x.values()]
            else:
                found.append(x)
    return found


def all_bits_equal(first, other):
    """True if all bits agree, compared on the tensors' device; a NaN is a NaN, whatever its other bits."""
    return len(first) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and not differing_elements(a, b).any()
        for a, b in zip(first, other)
    )


def words(target, cases):
    """A word for each case, to be judged; the evidence and the cost are figures."""
    results, built = {}, {}
    for one in cases:
        try:
            with built_on(target.device):
                built[one.name] = list(one.build())
        except Exception as error:
            results[one.name] = f"could not be built: {_first_line(error)}"
    with enable_op_determinism():
        on = {name: repeated(name, runs, target) for name, runs in built.items()}
        overloads = {name: _overloads(built[name], target) for name in on if on[name].error is None}
    off = {name: repeated(name, runs, target) for name, runs in built.items()}
    results |= {name: word(on[name], off[name]) for name in built}
    varied = {name for name in overloads if on[name].others}
    varying = set().union(*(overloads[name] for name in varied))
    seen = {EQUAL: set().union(*(overloads[name] for name in overloads)) - varying, VARYING: varying}
    target.figures |= {title: " ".join(sorted(names)) for title, names in seen.items() if names}
    _note_figures(target.figures, results, on, off)
    return results


def _overloads(runs, target):
    """The overloads that the samples of a case dispatch; nothing where they cannot run in the mode that lists them."""
    with Names() as names, torch.device(target.device):
        try:
            for run in runs:
                run()
        except Exception as error:
            if is_fault(error):
                raise
            return set()
    return set(names.seen)


def word(on, off):
    if on.error is None:
        return f"{on.others} of {len(on.seconds)} further runs had other bits" if on.others else SAME
    text = str(on.error).strip().partition("\n")[0]  # the rest lists kernels, by the files that register them
    if isinstance(on.error, UnimplementedError):
        return REFUSED if "Use " in text else f"refused without the way out: {text}"
    if off.error is not None and not any(word in text for word in NO_EXCUSE):
        return ELSEWHERE
    return NO_BACKEND if "No available kernel" in text else f"under the switch {_first_line(on.error)}"


def _first_line(error):
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _note_figures(figures, results, on, off):
    groups = {
        "varied without the switch": [name for name, one in off.items() if one.others],
        "other bits on another stream": [name for name, one in on.items() if one.on_another_stream],
        "refused": [name for name, found in results.items() if found == REFUSED],
        "no backend": [name for name, found in results.items() if found == NO_BACKEND],
        "not on this device": [
            f"{name}: {_first_line(off[name].error)}" for name, found in results.items() if found == ELSEWHERE
        ],
    }
    figures |= {title: f"{len(names)} ({', '.join(names)})" for title, names in groups.items() if names}
    timed = [name for name in on if on[name].error is None and off[name].error is None]
    ratios = {name: median(on[name].seconds) / max(median(off[name].seconds), 1e-9) for name in timed}
    if ratios:
        worst = max(ratios, key=ratios.get)
        figures |= {"cost, median": median(ratios.values()), "cost, most": ratios[worst], "of": worst}


def judge_words(results):
    """Yields each op of the device that neither has the same bits nor is refused with a cure."""
    for name, found in results.items():
        if found not in {SAME, REFUSED, ELSEWHERE, NO_BACKEND}:
            yield f"{name}: {found}"


def atomics(target):
    """True if sums of many numbers in few elements vary without the switch: torch's kernels add with atomics."""
    draw = torch.Generator().manual_seed(0)
    source = torch.randn(1 << 20, generator=draw).to(target.device)
    index = torch.randint(8, (1 << 20,), generator=draw).to(target.device)
    empty = torch.zeros(8, device=target.device)
    sums = {
        "index_add": lambda: empty.index_add(0, index, source),
        "scatter_add": lambda: empty.scatter_add(0, index, source),
        "index_put": lambda: empty.index_put((index,), source, accumulate=True),
        "bincount": lambda: torch.bincount(index, source),
    }
    for name, run in sums.items():
        first = run()
        others = sum(not all_bits_equal([first], [run()]) for _ in range(60))
        target.figures[f"{name}: other bits, of 60 runs"] = others
    return {"something varied": any(target.figures.values())}


@pytest.mark.limit(120)
def test_sums_by_atomics_vary_without_the_switch(target):
    """Control: else twenty equal runs would prove nothing."""
    target.check(all_true, atomics, example={"something varied": True})


# --- what is refused ---


def refusals(target):
    """The word for every overload of the list of refusals under the switch, with no formulation installed."""
    with check.assume_verified(()), enable_op_determinism():
        tried = [op for op in refused_calls.refused(target.device.upper()) if op in refused_calls.ARGUMENTS]
        results = {op: refused_calls.outcome(op, target.device) for op in tried}
    runs = [op for op, found in results.items() if found == refused_calls.RUNS]
    target.figures |= {"tried": len(results), "run under the switch": ", ".join(runs)}
    return results


def judge_refusals(results):
    """Yields each op that ends in torch's message, or in another error."""
    for op, found in results.items():
        if found not in {refused_calls.OURS, refused_calls.RUNS}:
            yield f"{op}: {found}"


@pytest.mark.limit(120)
def test_a_refused_op_names_the_cure(target):
    """Each overload of the list raises our error with the way out, or runs: torch has a deterministic path."""
    example = {"aten::histc": refused_calls.OURS, "aten::scatter.src": refused_calls.RUNS}
    target.check(judge_refusals, refusals, example=example)


# --- formulations ---

NO_KERNEL = "torch has no kernel of it on this device"
BACKEND = "lanczos"
"""In the name of the one op that a torch may have on the CPU only."""


def formulated(target, sample):
    """Bits over twenty runs, values against float64 on the CPU, its other forms, and its cost."""
    if not check.runs_on(sample, target.device):
        return {"checked": NO_KERNEL}
    results = {"different results": {}, "error over what is allowed": {}}
    errors = []
    for large in (False,) if target.small else (False, True):
        for dtype in sample.dtypes:
            maker = Maker(target.device, dtype, large=large)
            one = check.run_sample(sample, maker, 5 if target.small else RUNS)
            title = f"{str(dtype).removeprefix('torch.')} {'large' if large else 'small'}"
            results["different results"][title] = one.results
            results["error over what is allowed"][title] = one.error / one.allowed
            errors.append(f"{title} {one.error:.1e}")
    args = sample.make(Maker(target.device, F32))
    with check.install_formulations(target.device):
        wanted = check.call(sample.call, args)
        results["forms"] = {op: check.same_bits(check.call(op, args), wanted) for op in sample.covers}
    maker = Maker(target.device, F32, large=not target.small)
    target.figures[RATIO] = check.ratio(sample, maker, 0.0 if target.small else 0.03)
    target.figures |= {COVERS: " ".join(sample.covers), "largest errors": ", ".join(errors)}
    return results


def judge_formulation(results):
    """Yields several results, an error beyond the allowed one, a form with other bits than the functional one."""
    if set(results) == {"checked"}:
        if results["checked"] != NO_KERNEL:
            yield f"it was not checked: {results['checked']}"
        return
    for title, number in results["different results"].items():
        if number != 1:
            yield f"{title}: the runs gave {number} different results"
    for title, share in results["error over what is allowed"].items():
        if not share <= 1:
            yield f"{title}: {share:.3g} times the error that is allowed, against float64 on the CPU"
    for op, same in results["forms"].items():
        if not same:
            yield f"{op} has not the bits of the functional form"


def kernels(target):
    """For each replaced overload, True if this torch has a kernel of it on the device."""
    results = {one.op: has_kernel(one.op, target.device.upper()) for one in REPLACEMENTS}
    return {op: found for op, found in results.items() if BACKEND not in op}


def test_every_formulation_stands_before_a_kernel(target):
    """Each replaced overload has a kernel of torch's on the device."""
    target.check(all_true, kernels, example={one.op: True for one in REPLACEMENTS})


def installed(target):
    """True for each sample whose bits under the switch, as if all was verified, are those of the formulation."""
    results, here = {}, [one.op for one in REPLACEMENTS if has_kernel(one.op, target.device.upper())]
    for sample in (one for one in SAMPLES if check.runs_on(one, target.device)):
        args = sample.make(Maker(target.device, F32))
        with check.install_formulations(target.device):
            wanted = check.call(sample.call, args)
        with check.assume_verified(here), enable_op_determinism():
            results[sample.name] = check.same_bits(check.call(sample.call, args), wanted)
    return results


@pytest.mark.limit(240)
def test_the_switch_installs_what_is_verified(target):
    """The overrides that load late under the switch have the bits of the formulations."""
    target.check(all_true, installed, example={SAMPLES[0].name: True})


@pytest.mark.limit(240)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_formulation_has_the_values_of_the_cpu(target, sample):
    """Small and large, in each type: the same bits in twenty runs, values as on the CPU in float64, equal forms."""
    target.check(judge_formulation, formulated, sample)


@pytest.mark.limit(280)
@pytest.mark.parametrize("batch", BATCHES)
def test_an_op_repeats_its_bits_or_is_refused(target, batch):
    """Under the switch each case has the same bits in twenty runs, or is refused with a cure."""
    target.check(judge_words, words, BATCHES[batch], example={one.name: SAME for one in BATCHES[batch]})


# --- controls, on the CPU ---

PAD = next(s for s in SAMPLES if s.name == "reflection_pad2d_backward")
OP = "aten::reflection_pad2d_backward"


def _good(*args):
    return next(r for r in REPLACEMENTS if r.op == OP).make(None)(*args)


BROKEN = {
    "noise": (OP, lambda *a: _good(*a) + torch.rand(()).to(a[0].dtype) * 1e-6, "different results"),
    "a thousandth": (OP, lambda *a: _good(*a) * 1.001, "times the error that is allowed"),
    "the out form": (
        f"{OP}.grad_input",
        lambda *a, grad_input: grad_input.resize_(a[1].shape).copy_(_good(*a) * 1.001),
        f"{OP}.grad_input has not the bits of the functional form",
    ),
}


@pytest.mark.parametrize("op, function, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_formulation_is_seen(small, monkeypatch, op, function, message):
    """Noise far below the tolerance, a thousandth, a wrong `out` form: each is named as what it is."""
    assert list(judge_formulation(formulated(small, PAD))) == []
    others = (r for r in REPLACEMENTS if r.op != op)
    broken = Replacement(op, lambda kernel: function, "", device="CUDA")
    monkeypatch.setattr(check, "REPLACEMENTS", (*others, broken))
    lines = list(judge_formulation(formulated(small, PAD)))
    assert any(message in line for line in lines)
    assert message == "different results" or not any("different results" in line for line in lines)


def test_a_formulation_without_a_kernel_is_no_verification(small):
    """cuDNN's sampler on the CPU: no failure, and without the figures by which it would be recorded."""
    sample = next(s for s in SAMPLES if s.call == "aten::cudnn_grid_sampler_backward")
    assert list(judge_formulation(formulated(small, sample))) == [] and COVERS not in small.figures


def test_what_the_cpu_refuses_is_refused_in_our_words(small, monkeypatch):
    """Without our CPU kernels `put_` and unpooling raise with the way out; torch's own refusal is seen."""
    everything = refusals(small)
    assert set(everything.values()) == {refused_calls.RUNS} and len(everything) > 60
    monkeypatch.setattr(replacements, "REPLACEMENTS", ())
    found = refusals(small)
    ours = {op for op, found in found.items() if found == refused_calls.OURS}
    assert ours >= {"aten::put_", "aten::max_unpool2d", "aten::max_unpool3d.out"}
    assert list(judge_refusals(found)) == []
    monkeypatch.setattr(refused_ops, "CURES", {"CUDA": refused_ops.CURES["CUDA"]})
    assert any(line.startswith("aten::put_: refused by torch") for line in judge_refusals(refusals(small)))


def test_arguments_are_right_for_every_overload():
    """Off the switch each refused overload that the CPU has runs with its arguments: no failure hides in a refusal."""
    with check.disable_determinism():
        for op in refused_calls.refused("CPU"):
            if op in refused_calls.ARGUMENTS:
                refused_calls.with_outs(op, refused_calls.ARGUMENTS[op]("cpu"))


def once(run, name="case"):
    return ReviewCase("test", name, lambda: iter([run]))


def test_a_case_that_varies_is_seen(small):
    """Other bits in each call: the judge names it; figures count it, and keep what it dispatched out of the evidence."""
    calls = iter(range(1000))
    odd = once(lambda: torch.ones(3).cos() * next(calls))
    results = words(small, [odd, once(lambda: torch.ones(3).sin(), "good")])
    assert results == {"case": "2 of 2 further runs had other bits", "good": SAME}
    assert len(list(judge_words(results))) == 1 and small.figures["varied without the switch"] == "1 (case)"
    assert small.figures[EQUAL] == "aten::sin" and "aten::cos" in small.figures[VARYING]


def test_an_error_under_the_switch_alone_is_a_failure(small):
    """Torch's own refusal, one without the way out, any other error; what raises without the switch too is named."""

    def raising(error, always=False):
        def run():
            if always or samebits.op_determinism_enabled():
                raise error
            return torch.ones(1)

        return run

    library = RuntimeError("CUDA error: CUSPARSE_STATUS_NOT_SUPPORTED in f")
    found = words(
        small,
        [
            once(raising(RuntimeError("x does not have a deterministic implementation")), "torch's"),
            once(raising(UnimplementedError("no")), "unhelpful"),
            once(raising(UnimplementedError("x on CUDA has none. Use another op.")), "refused"),
            once(raising(ValueError("other")), "other"),
            once(raising(RuntimeError("no such driver"), True), "elsewhere"),
            once(raising(library, True), "library"),
            once(raising(RuntimeError("No available kernel. Aborting.")), "backend"),
            once(raising(RuntimeError("expected all tensors on the same device"), True), "ours"),
        ],
    )
    assert [line.partition(":")[0] for line in judge_words(found)] == [
        "torch's",
        "unhelpful",
        "other",
        "ours",
    ]
    assert found["refused"] == REFUSED and found["backend"] == NO_BACKEND
    assert small.figures["not on this device"].startswith(
        "2 (elsewhere: RuntimeError: no such driver, library: "
    )


def test_a_fault_of_the_device_is_raised(small, monkeypatch):
    """It spoils what comes behind it, in the battery and in a refusal: the rest must run in another process."""

    def fault(*_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match=r"^the case: CUDA error"):
        words(small, [once(fault, "the case")])
    monkeypatch.setitem(refused_calls.ARGUMENTS, "aten::put_", fault)
    with pytest.raises(RuntimeError, match=r"^aten::put_: CUDA error"):
        refusals(small)


def test_the_control_is_judged(small):
    """On one thread nothing varies without the switch: its judge says so."""
    torch.set_num_threads(1)
    assert list(all_true(atomics(small))) == ["something varied: False"]


@pytest.mark.parametrize("name", "float64 float32 bfloat16 float16 int64 bool complex64".split())
def test_bits_are_compared(name):
    """A flipped bit is seen in each dtype; -0 is not 0, a NaN is a NaN, sparse tensors are compared whole."""
    x = torch.arange(4).to(getattr(torch, name))
    y = x.clone()
    assert all_bits_equal([x], [y])
    y[2] = 0
    assert not all_bits_equal([x], [y])
    zero, nan = torch.zeros(2), torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(F32)
    assert not all_bits_equal([zero], [-zero]) and not all_bits_equal([zero], [zero.double()])
    assert all_bits_equal([nan], [nan.flip(0)]) and equal(nan, nan.flip(0))
    i, values = torch.tensor([[0, 0], [1, 1]]), ([1.0, 2.0], [2.0, 1.0])
    one, other = (leaves(torch.sparse_coo_tensor(i, torch.tensor(v), (2, 2))) for v in values)
    assert all_bits_equal(one, one) and not all_bits_equal(one, other)


@pytest.mark.parametrize("one", CASES[::23], ids=lambda one: one.full_name)
def test_everything_of_a_case_is_where_it_is_built(one):
    """Built on the meta device, inputs, parameters and results are there: none is left on the CPU."""
    with built_on("meta"):
        runs = list(one.build())
    with torch.device("meta"):
        for run in runs:
            try:
                found = {leaf.device.type for leaf in leaves(run())}
            except (NotImplementedError, RuntimeError) as error:
                text = str(error)
                own = "device" not in text.partition(": attempted")[0]
                assert own or "autocast" in text or "supported devices" in text
            else:
                assert found <= {"meta"}


REPEATED = [one for one in CASES if one.group in {"sparse", "indexing"}][::9]


@pytest.mark.parametrize("one", REPEATED, ids=lambda one: one.full_name)
def test_cases_have_the_same_bits_on_the_cpu(small, one):
    """The whole way of a case, on the CPU: under the switch its bits stay."""
    assert words(small, [one]) == {one.name: SAME}
