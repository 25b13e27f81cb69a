"""Times each CUDA formulation against torch's nondeterministic kernel, interleaved in one run, and prints the ratio.

    python bench/alternatives.py                              # on the CPU, where torch's kernels are the ones to beat too
    python bench/alternatives.py --device cuda --record       # writes what holds into verified.toml, which activates it

An overload is recorded when every sample that covers it gave equal bits in five runs and the values of the CPU in float64.
"""

import argparse
import datetime as dt
import time

import torch

from samebits.determinism.alternatives.check import failures, installed, nondeterministic, runs_on
from samebits.determinism.alternatives.samples import SAMPLES, Maker
from samebits.determinism.alternatives.verified import FILE, Verification, record
from samebits.determinism.overrides import overload

ROUNDS, SECONDS = 5, 0.05


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--filter", default="", help="only samples with this in their name")
    parser.add_argument("--small", action="store_true", help="small tensors: what a call costs")
    parser.add_argument(
        "--record", action="store_true", help="check, and write what holds into verified.toml"
    )
    options = parser.parse_args()
    if options.record and (options.device != "cuda" or options.filter or options.small):
        parser.error(
            "--record takes --device cuda and nothing else: a record speaks for all samples at full size"
        )
    torch.utils.deterministic.fill_uninitialized_memory = False  # as the switch has it
    ratios, broken = {}, set()
    for sample in SAMPLES:
        if options.filter not in sample.name or not runs_on(sample, options.device):
            continue
        ours, theirs = times(sample, options.device, large=not options.small)
        for op in sample.covers:
            ratios[op] = max(ratios.get(op, 0.0), ours / theirs)
        print(
            f"{sample.name:45} {ours * 1e3:9.3f} ms   torch {theirs * 1e3:9.3f} ms   {ours / theirs:6.2f}x",
            flush=True,
        )
        if options.record:
            wrong = failures(sample, "cuda") + failures(sample, "cuda", large=True)
            broken.update(sample.covers if wrong else ())
            print(*(f"    {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    if options.record:
        write(ratios, broken)


def times(sample, device, *, large):
    """Seconds per call, ours and torch's without the switch: the least of the rounds."""
    args = sample.make(Maker(device, torch.float32, large=large))
    op = overload(sample.call)
    best = {}
    for _ in range(ROUNDS):
        for name, state in (("ours", lambda: installed(device)), ("theirs", nondeterministic)):
            with state():
                best[name] = min(best.get(name, 9e9), seconds(lambda: op(*args), device))
    return best["ours"], best["theirs"]


def seconds(function, device):
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    function()  # tables, compiled kernels, memory
    wait()
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < SECONDS:
        function()
        calls += 1
        if calls % 10 == 0:
            wait()
    wait()
    return (time.perf_counter() - start) / calls


def write(ratios, broken):
    gpu, today = torch.cuda.get_device_name(), dt.datetime.now(dt.UTC).date()
    record(Verification(op, gpu, today, torch.__version__, r) for op, r in ratios.items() if op not in broken)
    print(f"{len(ratios) - len(broken)} overloads recorded in {FILE}; {len(broken)} not: {sorted(broken)}")


if __name__ == "__main__":
    main()
