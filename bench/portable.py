"""What the same bits for every number of threads and on every machine cost: whole training steps and single ops, in float32 and bfloat16.

    python bench/portable.py [--rounds 9] [--only steps|ops] [--threads 1,2] [--json FILE]

In one process torch's default and `across="machines"` take turns, whose kernels `across="threads"` has, too; the
fastest of the rounds counts. Printed are torch's time, and the time of ours over it. "refused" is an op that raises. The kernels of each family by themselves: portable_product.py, portable_functions.py, portable_reductions.py
and portable_convolution.py.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import samebits

sys.path.insert(0, str(Path(__file__).parent))
import figures
import ops

MACHINES = "samebits, machines too"


def layers() -> dict[str, Callable[[], Any]]:
    """Ops of every family beside those of ops.py: products, functions, reductions, convolutions, attention."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype)[6:]
        x, wide = torch.randn(256, 1024).to(dtype), torch.randn(4096, 1024).to(dtype)
        weight, bias = torch.randn(1024, 1024).to(dtype), torch.randn(1024).to(dtype)
        image, kernel = torch.randn(16, 64, 32, 32).to(dtype), torch.randn(64, 64, 3, 3).to(dtype)
        heads = torch.randn(4, 4, 256, 64).to(dtype)
        scores = torch.randn(512, 1000).to(dtype)
        million = torch.randn(1 << 20).to(dtype)
        found |= {
            f"linear 256 x 1024 -> 1024, {name}": lambda x=x, w=weight, b=bias: F.linear(x, w, b),
            f"linear 4096 x 1024 -> 1024, {name}": lambda x=wide, w=weight, b=bias: F.linear(x, w, b),
            f"conv2d 3 x 3, 64 -> 64, {name}": lambda x=image, w=kernel: F.conv2d(x, w, padding=1),
            f"attention, 4 heads of 256 x 64, {name}": lambda x=heads: F.scaled_dot_product_attention(x, x, x),
            f"softmax 512 x 1000, {name}": lambda x=scores: x.softmax(1),
            f"layer_norm 4096 x 1024, {name}": lambda x=wide, b=bias: F.layer_norm(x, (1024,), b, b),
            f"sum of 2^20, {name}": million.sum,
            **{f"{op} of 2^20, {name}": getattr(million, op) for op in ("exp", "tanh", "sigmoid", "erf", "sin")},
            f"gelu of 2^20, {name}": lambda x=million: F.gelu(x),
        }  # fmt: skip
    return found


def as_table(group: str, found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The table of a page: models in float32 / bfloat16 by threads, or a line for each op."""
    if group == "ops":
        columns = [("", ""), *((f"{one} thread{'s' * (one > 1)}", figures.RATIO) for one in found)]
        return figures.table(
            columns, [[name, *(by[name] for by in found.values())] for name in next(iter(found.values()))]
        )
    rows: list[list[Any]] = []
    for threads, ratios in found.items():
        models: dict[str, list[Any]] = {}
        for name, ratio in ratios.items():
            models.setdefault(name.replace(",", " ").split()[0], []).append(ratio)
        rows.append([threads, *models.values()])
    return figures.table([("threads", ""), *((model, figures.RATIO) for model in models)], rows)


def main() -> None:
    """Prints the tables."""
    file = figures.file_asked()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("steps", "ops"))
    parser.add_argument("--threads", default="1,2")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    groups = {
        "steps": ("Whole training step", ops.steps),
        "ops": ("Single ops", lambda: layers() | ops.ops()),
    }
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for threads in map(int, asked.threads.split(",")):
        for group, (title, cases) in groups.items():
            if asked.only in (None, group):
                best = ops.fastest(cases(), asked.rounds, threads, ("default", MACHINES))
                print(f"\n{title}, {threads} thread(s)\n{'':44}{'default':>12}{'to default':>14}")
                for name, times in best.items():
                    ours = times[MACHINES]
                    torchs = times["default"]
                    ratio = "refused" if ours is None or torchs is None else ours / torchs
                    found.setdefault(group, {}).setdefault(threads, {})[name] = ratio
                    shown = ratio if isinstance(ratio, str) else f"{ratio:.2f}"
                    print(f"{name:44}{(torchs or 0) * 1e3:>9.3f} ms{shown:>14}", flush=True)
    figures.save(file, **{group: as_table(group, by) for group, by in found.items()})


if __name__ == "__main__":
    main()
