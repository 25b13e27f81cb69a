"""What logical shards cost: a step against plain accumulation (one process), DDP and FSDP2 (several, gloo).

    python bench/elastic.py [ROUNDS] [--ranks 2] [--json FILE]

A transformer of 1.86 million weights, 4 rows of 64 tokens a shard, one thread a rank. Modes are interleaved in the
same processes; the figure is the median over rounds of the median of a few steps. DDP adds its gradients with
no_sync in all but a step's last backward; FSDP2 adds them in each backward.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext

import figures
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import samebits

WIDTH, DEPTH, WORDS, TOKENS, ROWS = 192, 4, 200, 64, 4
STEPS, UNTIMED = 8, 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.head(self.layers(self.words(x)))


def backward(model, rows, shards):
    (F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()) / shards).backward()


def batches(shards):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(WORDS, (STEPS * shards * ROWS, TOKENS + 1), generator=generator)


def sharded():
    """The model by FSDP2."""
    model = Model()
    for layer in model.layers.layers:
        fully_shard(layer)
    return fully_shard(model)


def fsdp2_by_shards(shards):
    return by_shards(shards, sharded)


def by_shards(shards, make=Model):
    """Seconds of each step of a run with shards."""
    samebits.set_random_seed(1)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = samebits.data.DataLoader(batches(shards), batch_size=shards * ROWS)
    taken = []
    with samebits.Run(None, model=model, optimizer=optimizer) as run:
        for step, own in run.steps(loader, epochs=1, shards=shards):
            barrier()
            begun = time.perf_counter()
            for rows in own:
                backward(model, rows, step.shards)
            optimizer.step()
            optimizer.zero_grad()
            taken.append(time.perf_counter() - begun)
    return taken[UNTIMED:]


def alone(shards):
    """Seconds of each step of plain PyTorch: in one process accumulation, in several DDP."""
    samebits.set_random_seed(1)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model = DistributedDataParallel(model) if world_size > 1 else model
    loader = samebits.data.DataLoader(batches(shards), batch_size=shards * ROWS)
    taken = []
    with samebits.Run(None, optimizer=optimizer) as run:
        for _, rows in run.steps(loader, epochs=1):
            barrier()
            begun = time.perf_counter()
            own = range(rank, shards, world_size)
            for shard in own:
                last = world_size == 1 or shard == own[-1]
                with nullcontext() if last else model.no_sync():
                    backward(model, rows[shard::shards], shards / world_size)
            optimizer.step()
            optimizer.zero_grad()
            taken.append(time.perf_counter() - begun)
    return taken[UNTIMED:]


def fsdp2(shards):
    """Seconds of each step of FSDP2, which sends gradients in each backward."""
    samebits.set_random_seed(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data, taken = batches(shards), []
    for rows in data.split(shards * ROWS):
        barrier()
        begun = time.perf_counter()
        for shard in range(rank, shards, world_size):
            backward(model, rows[shard::shards], shards / world_size)
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - begun)
    return taken[UNTIMED:]


def barrier():
    if dist.is_initialized():
        dist.barrier()


def rank_main(rounds, shards, modes):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measured = measure(rounds, shards, modes)
    if dist.get_rank() == 0:
        print("times", *measured, flush=True)
    dist.destroy_process_group()


def measure(rounds, shards, modes=(by_shards, alone)):
    """Median seconds by shards and without, interleaved."""
    times = {mode: [] for mode in modes}
    for number in range(rounds + 1):
        for mode in modes if number % 2 else modes[::-1]:
            taken = statistics.median(mode(shards))
            times[mode] += [taken] if number else []  # the first round warms up
    return [statistics.median(times[mode]) for mode in modes]


def on_ranks(ranks, *words):
    """What rank 0 prints."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        __file__,
        *map(str, words),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return next(
        line.split()[1:] for line in done.stdout.splitlines() if line.startswith(("times ", "memory "))
    )


def memory_main(mode, shards):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"by_shards": by_shards, "alone": alone}[mode](shards)
    if dist.get_rank() == 0:
        print("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
    dist.destroy_process_group()


def main():
    file = figures.file_asked()
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--part", nargs=2)
    args = parser.parse_args()
    if args.part and args.part[0] == "rank":
        return rank_main(args.rounds, int(args.part[1]), (by_shards, alone))
    if args.part and args.part[0] == "fsdp2":
        return rank_main(args.rounds, int(args.part[1]), (fsdp2_by_shards, fsdp2))
    if args.part:
        return memory_main(args.part[0], int(args.part[1]))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    weights = sum(one.numel() for one in Model().parameters())
    print(
        f"torch {torch.__version__}, {weights} weights, {ROWS} x {TOKENS} tokens a shard, {args.rounds} rounds"
    )
    rows = []
    for ranks, shards in ((1, 8), (args.ranks, args.ranks), (args.ranks, 8)):
        if ranks == 1:
            ours, theirs = measure(args.rounds, shards)
        else:
            ours, theirs = map(float, on_ranks(ranks, args.rounds, "--part", "rank", shards))
        rounds = -(-shards // ranks)
        sent = 4 * (ranks - 1) / ranks * (rounds + 1)
        rows.append([ranks, shards, ours * 1e3, theirs * 1e3, ours / theirs, sent, 8 * (ranks - 1) / ranks])
        print(f"{ranks} ranks, {shards} shards: {ours * 1e3:8.1f} ms, without {theirs * 1e3:8.1f} ms, ratio {ours / theirs:.3f}, "
              f"{sent:.1f} bytes a weight against {rows[-1][-1]:.1f}", flush=True)  # fmt: skip
    sharded_rows = []
    for shards in (args.ranks, 8):
        ours, theirs = map(float, on_ranks(args.ranks, args.rounds, "--part", "fsdp2", shards))
        sharded_rows.append([args.ranks, shards, ours * 1e3, theirs * 1e3, ours / theirs])
        print(f"FSDP2, {args.ranks} ranks, {shards} shards: {ours * 1e3:8.1f} ms, without {theirs * 1e3:8.1f} ms, ratio {ours / theirs:.3f}",
              flush=True)  # fmt: skip
    memory = [float(on_ranks(args.ranks, 1, "--part", mode, 8)[0]) for mode in ("by_shards", "alone")]
    print(f"peak of rank 0: {memory[0]:.0f} MiB, DDP {memory[1]:.0f} MiB")
    columns = [("ranks", "{}"), ("shards", "{}"), ("by shards", figures.MILLISECONDS), ("plain or DDP", figures.MILLISECONDS),
               ("ratio", figures.RATIO), ("bytes sent a weight", "{:.3g}"), ("DDP's", "{:.3g}")]  # fmt: skip
    peaks = [("by shards", "{:.0f} MiB"), ("DDP", "{:.0f} MiB")]
    of_fsdp2 = [*columns[:3], ("FSDP2", figures.MILLISECONDS), ("ratio", figures.RATIO)]
    figures.save(
        file,
        steps=figures.table(columns, rows),
        fsdp2=figures.table(of_fsdp2, sharded_rows),
        memory=figures.table(peaks, [memory]),
    )
    return None


if __name__ == "__main__":
    main()
