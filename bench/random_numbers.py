"""Nanoseconds per element of samebits.random against torch's own generators, one thread, interleaved.

    python bench/random_numbers.py [elements]

Prints medians and the ratio to torch (below 1 is faster).
"""

import sys
import time
from statistics import median

import torch

import samebits.random as sr
from samebits.random import generators, words
from samebits.random.feistel import permute_indices

ROUNDS = 15


def time_ns(call, elements):
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / elements


def compare(name, ours, theirs, elements):
    ours(), theirs()
    pairs = [(time_ns(ours, elements), time_ns(theirs, elements)) for _ in range(ROUNDS)]
    a, b = (median(column) for column in zip(*pairs, strict=True))
    print(f"{name:28} {a:8.2f} {b:8.2f} {a / b:7.2f}")


def repeated(call, times=1000):
    return lambda: [call() for _ in range(times)] and None


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    torch.set_num_threads(1)
    key, pair = sr.key(1), words.root(1)
    print(f"{n} elements\n{'ns per element':28} {'samebits':>8} {'torch':>8} {'ratio':>7}")
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        compare(
            f"uniform {name}",
            lambda d=dtype: sr.uniform(key, n, dtype=d),
            lambda d=dtype: torch.rand(n, dtype=d),
            n,
        )
        compare(
            f"normal {name}",
            lambda d=dtype: sr.normal(key, n, dtype=d),
            lambda d=dtype: torch.randn(n, dtype=d),
            n,
        )
    words_of = torch.empty(n, dtype=torch.int32)
    compare("bits 32", lambda: sr.bits(key, n), words_of.random_, n)
    compare("permutation", lambda: permute_indices(pair, 0, n, n), lambda: torch.randperm(n), n)
    print(f"\n{'ns per call':28} {'samebits':>8} {'torch':>8} {'ratio':>7}")
    compare(
        "fold an int | manual_seed",
        repeated(lambda: words.fold(pair, 3)),
        repeated(lambda: torch.manual_seed(3)),
        1000,
    )
    compare(
        "fill | manual_seed",
        repeated(lambda: generators.fill(pair)),
        repeated(lambda: torch.manual_seed(3)),
        1000,
    )
    compare(
        "uniform of 8 | rand", repeated(lambda: sr.uniform(key, 8)), repeated(lambda: torch.rand(8)), 1000
    )


if __name__ == "__main__":
    main()
