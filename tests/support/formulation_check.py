"""Runs a formulation on a device and checks it: bits, values against float64, time against torch's kernel."""

import datetime as dt
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from agreement import codes
from samebits._inspect.patching import replaced
from samebits._native.torch_threads import on_single_thread
from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._dispatcher import KernelOverrides, has_kernel, overload
from samebits.determinism._verified_on_gpu import GpuVerification

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Largest allowed error, over the largest value."""
_ROUNDS = 3


@contextmanager
def _switch_flag(on):
    """Has torch's flag on or off, without the rest of the switch; other threads are affected too."""
    was = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(on, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(was, warn_only=warns)


def disable_determinism():
    """Runs torch's kernels as they are without the switch."""
    return _switch_flag(False)


@contextmanager
def install_formulations(device):
    """Installs all formulations in front of torch's kernels on "cpu" or "cuda", verified or not, with the switch's flag on."""
    key, overrides = device.upper(), KernelOverrides()
    for replacement in REPLACEMENTS:
        if has_kernel(replacement.op, key):
            overrides.put(replacement.op, key, replacement.make)
    try:
        with _switch_flag(True):
            yield
    finally:
        overrides.remove()


@contextmanager
def assume_verified(ops):
    """Makes the switch, turned on inside, take these overloads, and no others, as verified by a GPU."""
    entries = [GpuVerification(op, "assumed", dt.date(2026, 1, 1), torch.__version__, 1.0) for op in ops]
    with replaced(verified_on_gpu, "read", lambda: entries):
        yield


def runs_on(sample, device):
    """True if torch has kernels there for all that the sample covers (cuDNN's is for CUDA only, Lanczos for the
    CPU).
    """
    return all(has_kernel(op, device.upper()) for op in sample.covers)


def call(name, args):
    """The tensors that an overload returns for copies of `args`; out arguments are given empty."""
    op = overload(name)
    args = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)
    outs = {
        a.name: args[0].new_empty(0, dtype=torch.int64 if a.name == "indices" else None)
        for a in op._schema.arguments
        if a.is_out
    }
    result = op(*args, **outs)
    return [x for x in (result if isinstance(result, (tuple, list)) else (result,)) if x is not None]


def same_bits(first, second):
    """True if shapes, dtypes and bytes agree: signed zeros and NaN payloads count."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(codes(a), codes(b))
        for a, b in zip(first, second, strict=True)
    )


def error(got, exact):
    """The largest difference over the largest value, of all floating results; infinite where only one is finite."""
    pairs = zip(got, exact, strict=True)
    return max(_error(a.cpu().double(), b.cpu().double()) for a, b in pairs if b.is_floating_point())


def _error(got, exact):
    finite = exact.isfinite()
    if got.shape != exact.shape or not torch.equal(got.isfinite(), finite):
        return math.inf
    if not finite.any():
        return 0.0
    return float((got - exact)[finite].abs().max() / exact[finite].abs().max().clamp(min=1e-30))


def reference(sample, args):
    """The result of torch's own kernel on the CPU in float64 for the same values (cuDNN's sampler: torch's,
    with its fixed modes).

    On one thread, where torch writes duplicate indices in the order of the index too.
    """
    name, args = sample.call, tuple(_exact(x) for x in args)
    if "cudnn" in name:
        image, grid, grad = args
        name, args = "aten::grid_sampler_2d_backward", (grad, image, grid, 0, 0, True, [True, True])
    with disable_determinism():
        return on_single_thread(call)(name, args)


@dataclass(frozen=True)
class SampleResult:
    """A sample run with one dtype and size."""

    results: int
    """The number of different results, by their bits."""
    error: float
    """The largest difference from the CPU in float64, over the largest value."""
    allowed: float
    """The largest error that is allowed: a tolerance, or 1.5 times the error of torch's own kernel."""


def run_sample(sample, maker, runs):
    """Runs the formulation `runs` times on the maker's device."""
    args = sample.make(maker)
    with install_formulations(maker.device):
        first = call(sample.call, args)
        different = [first]
        for _ in range(runs - 1):
            other = call(sample.call, args)
            if not any(same_bits(other, known) for known in different):
                different.append(other)
    exact = reference(sample, args)
    wrong, allowed = error(first, exact), TOLERANCE[maker.dtype]
    if wrong > allowed:
        allowed = max(allowed, 1.5 * _torchs_error(sample, args, exact))
    return SampleResult(len(different), wrong, allowed)


def ratio(sample, maker, seconds):
    """Our time over that of torch's nondeterministic kernel: the least of interleaved rounds, `seconds` each."""
    args, op = sample.make(maker), overload(sample.call)
    best = {}
    states = {"ours": lambda: install_formulations(maker.device), "torch's": disable_determinism}
    for _ in range(_ROUNDS):
        for name, state in states.items():
            with state():
                took = per_call(lambda: op(*args), maker.device, seconds)
            best[name] = min(best.get(name, math.inf), took)
    return best["ours"] / best["torch's"]


def per_call(function, device, seconds):
    """The seconds of one of many calls, the device's work included."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    function()  # tables, compiled kernels, memory
    wait()
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < seconds:
        function()
        calls += 1
        if calls % 10 == 0:
            wait()
    wait()
    return (time.perf_counter() - start) / calls


def _torchs_error(sample, args, exact):
    """The error of torch's nondeterministic kernel against float64 (`ctc_loss` subtracts large logarithms)."""
    with disable_determinism():
        return error(call(sample.call, args), exact)


def _exact(x):
    if not isinstance(x, Tensor):
        return x
    return x.cpu().double() if x.is_floating_point() else x.cpu()
