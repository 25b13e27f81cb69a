"""samebits.random against torch's generators on a GPU: CUDA events, interleaved, medians of ratios.

    python bench/random_cuda.py [rounds]

Per call and size: microseconds of ours and of torch's, GB/s of ours, and how many times faster than torch ours is. The
small size shows what a launch costs. Without a GPU it prints one line and ends with 2.
"""

import sys
from statistics import median

import torch
import torch.nn.functional as F

import samebits.random as sr

SIZES = (1 << 10, 1 << 20, 1 << 26)
CALLS = 20


def rows(n):
    """(name, bytes written and read, ours, torch's): calls that make n numbers each."""
    key = sr.key(1, device="cuda")
    x, half = torch.rand(n, device="cuda", requires_grad=True), torch.rand(n, device="cuda").bfloat16()
    grad = torch.ones_like(x)
    integers = {"low": 0, "high": 1000}

    def both(drop):
        return torch.autograd.grad(drop(), x, grad)

    return [
        ("rand", 4 * n, lambda: sr.uniform(key, n), lambda: torch.rand(n, device="cuda")),
        ("rand bfloat16", 2 * n, lambda: sr.uniform(key, n, dtype=half.dtype), lambda: torch.rand_like(half)),
        ("randn", 4 * n, lambda: sr.normal(key, n), lambda: torch.randn(n, device="cuda")),
        ("randn float64", 8 * n, lambda: sr.normal(key, n, dtype=torch.float64),
         lambda: torch.randn(n, device="cuda", dtype=torch.float64)),
        ("exponential_", 4 * n, lambda: sr.exponential(key, n), lambda: torch.empty(n, device="cuda").exponential_()),
        ("bernoulli_", 4 * n, lambda: sr.bernoulli(key, n, p=0.3), lambda: torch.empty(n, device="cuda").bernoulli_(0.3)),
        ("randint", 8 * n, lambda: sr.randint(key, n, **integers), lambda: torch.randint(**integers, size=(n,), device="cuda")),
        ("randperm", 8 * n, lambda: sr.permutation(key, n), lambda: torch.randperm(n, device="cuda")),
        ("dropout", 8 * n, lambda: sr.dropout(key, x, 0.3), lambda: F.dropout(x, 0.3)),
        ("dropout bfloat16", 4 * n, lambda: sr.dropout(key, half, 0.3), lambda: F.dropout(half, 0.3)),
        ("dropout and gradient", 16 * n, lambda: both(lambda: sr.dropout(key, x, 0.3)), lambda: both(lambda: F.dropout(x, 0.3))),
    ]  # fmt: skip


def microseconds(call):
    """Of one call, over CALLS of them between two events."""
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    for _ in range(CALLS):
        call()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) * 1000 / CALLS


def compare(ours, theirs, rounds):
    """Microseconds of ours and of torch's and the ratio torch / ours: medians over interleaved rounds."""
    ours(), theirs()  # compiles
    pairs = [(microseconds(ours), microseconds(theirs)) for _ in range(rounds)]
    return [median(column) for column in (*zip(*pairs, strict=True), [b / a for a, b in pairs])]


def main(rounds=20):
    if not torch.cuda.is_available():
        print(
            "random_cuda: no CUDA device, nothing was measured (torch.cuda.is_available() is False)",
            file=sys.stderr,
        )
        raise SystemExit(2)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':24}{'n':>10}{'ours us':>12}{'torch us':>12}{'ours GB/s':>12}{'times faster':>14}")
    for n in SIZES:
        for name, moved, ours, theirs in rows(n):
            us, theirs_us, ratio = compare(ours, theirs, rounds)
            print(f"{name:24}{n:>10}{us:>12.1f}{theirs_us:>12.1f}{moved / us / 1000:>12.1f}{ratio:>14.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
