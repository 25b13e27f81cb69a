"""samebits.random against torch's generators on the CPU: interleaved, medians of ratios.

    python bench/random_numbers.py [rounds] [--json FILE]

Three tables. Large: ns per element for 2**24 elements, at one and at two threads (one: time of the process; two: of the
wall), and how many times faster than torch. Small: us per call for 1,024 elements at one thread, and what is added to
torch's. Process: us per call of what reseeds generators. In-place rows write into a tensor that exists; torch has no
`permute_index`, which stands beside `torch.randperm` of as many elements.
"""

import os
import sys
import time
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import figures
import torch
import torch.nn.functional as F

import samebits.random as sr
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

LARGE, SMALL, BILLION = 1 << 24, 1 << 10, 10**9
KEY, PAIR = sr.key(1), int_keys.root(1)


def backward_of(drop, n):
    """Backward of a dropout whose forward is done, again and again."""
    x = torch.ones(n, requires_grad=True)
    y, grad = drop(x), torch.ones(n)
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)


def both_of(drop, n):
    """A dropout and its backward."""
    x, grad = torch.ones(n, requires_grad=True), torch.ones(n)
    return lambda: torch.autograd.grad(drop(x), x, grad)


def rows(n):
    """(name, ours, torch's): calls that make n numbers each."""
    x, integers, kept = torch.empty(n), torch.empty(n, dtype=torch.int32), torch.ones(n)
    indices = torch.arange(n) * (BILLION // n)
    return [
        ("uniform_", lambda: sr.uniform_(KEY, x), x.uniform_),
        ("normal_", lambda: sr.normal_(KEY, x), x.normal_),
        ("bernoulli_", lambda: sr.bernoulli_(KEY, x, p=0.3), lambda: x.bernoulli_(0.3)),
        ("dropout forward", lambda: sr.dropout(KEY, kept, 0.3), lambda: F.dropout(kept, 0.3)),
        (
            "dropout backward",
            backward_of(lambda t: sr.dropout(KEY, t, 0.3), n),
            backward_of(lambda t: F.dropout(t, 0.3), n),
        ),
        (
            "dropout both",
            both_of(lambda t: sr.dropout(KEY, t, 0.3), n),
            both_of(lambda t: F.dropout(t, 0.3), n),
        ),
        ("bits | random_", lambda: sr.bits(KEY, n), integers.random_),
        ("permutation | randperm", lambda: sr.permutation(KEY, n), lambda: torch.randperm(n)),
        (
            "permute_index of 10**9",
            lambda: sr.permute_index(KEY, indices, BILLION),
            lambda: torch.randperm(n),
        ),
    ]


def process_rows():
    """What a step or an element pays to set the generators of the process."""
    return [
        ("fold | manual_seed", lambda: int_keys.fold(PAIR, 3), lambda: torch.manual_seed(3)),
        ("fill | manual_seed", lambda: generator_states.fill(PAIR), lambda: torch.manual_seed(3)),
    ]


def compare(ours, theirs, calls, rounds, clock):
    """(ours, torch's) in ns per call and the ratio torch / ours: medians over interleaved rounds."""
    pairs = []
    for number in range(rounds + 1):
        took = []
        for call in (ours, theirs) if number % 2 else (theirs, ours):
            began = clock()
            for _ in range(calls):
                call()
            took.append((clock() - began) / calls)
        pairs.append(took if number % 2 else took[::-1])
    ours_ns, theirs_ns = zip(*pairs[1:], strict=True)  # the first round compiles
    ratios = [b / a for a, b in pairs[1:]]
    return median(ours_ns), median(theirs_ns), median(ratios)


def large(rounds):
    columns, found = [("", "")], {}
    for threads, clock in ((1, time.process_time_ns), (2, time.perf_counter_ns)):
        torch.set_num_threads(threads)
        columns += [(f"{threads} thread{'s' * (threads > 1)}: samebits", figures.THREE_DIGITS)]
        columns += [("torch", figures.THREE_DIGITS), ("faster", "{:.1f}x")]
        print(f"\nns per element, 2**24 elements, threads: {threads}")
        print(f"{'':24} {'samebits':>9} {'torch':>9} {'faster':>9}")
        for name, ours, theirs in rows(LARGE):
            a, b, ratio = compare(ours, theirs, 1, rounds, clock)
            print(f"{name:24} {a / LARGE:9.2f} {b / LARGE:9.2f} {ratio:8.1f}x", flush=True)
            found.setdefault(name, [name]).extend((a / LARGE, b / LARGE, ratio))
    return figures.table(columns, [*found.values()])


def small(title, given, rounds):
    torch.set_num_threads(1)
    added = []
    print(f"\nus per call, {title}, threads: 1")
    print(f"{'':24} {'samebits':>9} {'torch':>9} {'added':>9}")
    for name, ours, theirs in given:
        a, b, _ = compare(ours, theirs, 500, rounds, time.process_time_ns)
        print(f"{name:24} {a / 1000:9.2f} {b / 1000:9.2f} {(a - b) / 1000:+9.2f}", flush=True)
        added.append([name, (a - b) / 1000])
    return figures.table([("", ""), ("us a call beyond torch's", "{:+.1f}")], added)


def main():
    file = figures.file_asked()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    tables = {"large": large(rounds), "small": small("1,024 elements", rows(SMALL), rounds)}
    small("generators of the process", process_rows(), rounds)
    figures.save(file, **tables)


if __name__ == "__main__":
    main()
