"""Commits in parts: time, memory and bytes of each rank, beside rank 0 alone that has the whole model.

    python bench/parts.py [SIZE] [ROUNDS] [--json FILE]

The state is float32 weights of linear layers (64 MiB each; of a small SIZE one smaller layer), sharded over 2 ranks by rows;
files are in the folder TMPDIR. "Beside" is the memory that is neither the model's nor a file's page, above its value when the
clock starts. The commit is then read by 3 ranks, each into a model of its own.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import figures
import torch
import torch.distributed as dist
from checkpoint_large import LAYER, UNITS, measured
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from samebits.checkpoint._commit_parts import RanksReader, write_parts
from samebits.checkpoint._store import CommitStore
from samebits.distributed._gloo_messages import GlooGroup

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {"shards": 6}}
WRITERS, READERS = 2, 3
COLUMNS = [
    ("what", ""),
    ("seconds", ".2f"),
    ("MB beside", ".1f"),
    ("MB of a rank, at most", ".1f"),
    ("above its share", ".1%"),
]


def layers(size, ranks):
    """The rows of one rank of ranks: of each layer 4096 rows of 4096, fewer where the state is smaller."""
    rows = 4096 if size >= LAYER else max(ranks, size // 4096 // 4)
    most = -(-rows // ranks)
    return [max(0, min(most, rows - dist.get_rank() * most)) if ranks > 1 else rows] * max(
        1, round(size / LAYER)
    ), rows


def sharded(size, ranks, values=torch.rand):
    mesh, (own, rows) = init_device_mesh("cpu", (ranks,)), layers(size, ranks)
    make = {"run_check": False, "shape": torch.Size([rows, 4096]), "stride": (4096, 1)}
    return {f"{number}.weight": DTensor.from_local(values(count, 4096), mesh, [Shard(0)], **make)
            for number, count in enumerate(own)}  # fmt: skip


def write(size, folder, ranks):
    """One commit; returns seconds, bytes beside, bytes of the file of this rank."""
    row = {}
    if ranks == 1:
        own, _ = layers(size, 1)
        state = {f"{number}.weight": torch.rand(count, 4096) for number, count in enumerate(own)}
        with CommitStore(folder) as store, measured(row):
            store.write(store.prepare({"objects": {"model": state}}, step=1, **FACTS))
        return {
            **row,
            "bytes": sum(one.stat().st_size for one in folder.glob("commits/0*/tensors.safetensors")),
        }
    group, store = GlooGroup(), CommitStore(folder)
    state = {"objects": {"model": sharded(size, ranks)}}
    with store if dist.get_rank() == 0 else contextlib.nullcontext():
        dist.barrier()
        with measured(row):
            write_parts(group, store, state, step=1, on_tensors_written=lambda: None, **FACTS)
    part = f"commits/0*/part-{dist.get_rank():05d}.safetensors"
    return {**row, "bytes": next(folder.glob(part)).stat().st_size}


def read(size, folder, ranks):
    """Reads the rows of this rank; returns seconds, bytes beside, bytes that were read."""
    group, store, row = GlooGroup(), CommitStore(folder), {}
    live = {f"objects.model.{name}": one for name, one in sharded(size, ranks, torch.empty).items()}
    reader = RanksReader(group, store, lambda _: live, lambda *_: None)

    def find():
        with store:
            return store.newest(read=reader.read)

    with measured(row):
        found = reader.open(find)
    assert found is not None
    return {**row, "bytes": reader.bytes_read}


def start(what, size, folder, ranks):
    """What each rank returns."""
    rendezvous = f"file://{folder}.{what}{ranks}"
    command = [sys.executable, __file__, "--rank", what, str(size), str(folder), str(ranks), rendezvous]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, env=environment)
        for rank in range(ranks)
    ]
    found = [json.loads(one.communicate()[0]) for one in started]
    Path(f"{folder}.{what}{ranks}").unlink(missing_ok=True)
    return found


def rank_of(what, size, folder, ranks, rendezvous, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=int(rank), world_size=int(ranks))
    print(json.dumps({"write": write, "read": read}[what](int(size), Path(folder), int(ranks))))
    sys.stdout.flush()
    os._exit(0)


def main():
    file = figures.file_asked()
    size, rounds = sys.argv[1] if len(sys.argv) > 1 else "1GB", int(sys.argv[2]) if len(sys.argv) > 2 else 3
    unit = next(unit for unit in UNITS if size.endswith(unit))
    wanted = int(float(size.removesuffix(unit)) * UNITS[unit])
    found = {"rank 0 alone": [], "2 ranks": [], "read by 3": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone, parts = Path(folder) / "alone", Path(folder) / "parts"
            jobs = [("rank 0 alone", "write", alone, 1), ("2 ranks", "write", parts, WRITERS)]
            for name, *job in jobs if number % 2 else reversed(jobs):
                found[name].append(start(job[0], wanted, job[1], job[2]))
            found["read by 3"].append(start("read", wanted, parts, READERS))
    rows = []
    for name, each in found.items():
        seconds = statistics.median(max(rank["seconds"] for rank in one) for one in each)
        beside = max(rank["beside"] for one in each for rank in one)
        sizes = [rank["bytes"] for rank in each[-1]]
        rows.append([name, seconds, beside / 1e6, max(sizes) / 1e6, max(sizes) * len(sizes) / sum(sizes) - 1])
        print(f"{name:14s} {seconds:7.2f} s   beside {beside / 1e6:8.1f} MB   bytes by rank {sizes}")
    print(f"2 ranks / rank 0 alone: {rows[1][1] / rows[0][1]:.2f}")
    figures.save(file, parts=figures.table(COLUMNS, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_of(*sys.argv[2:])
    main()
