"""Input pipelines: items per second and the cost of resuming, against the peers, interleaved, in one run.

    make bench-data                         # installs the peers beside the project's own environment, then runs this
    python bench/data.py [--rounds 5] [--only cheap,aug28,aug96,resume,draws] [--json FILE]

Every measurement is a process of its own; each round runs all variants once, in turn. `rate` counts from the first
batch to the last (starting workers is not in it), the table shows medians and the ratio to the best peer of its column.
Work: `cheap`: 200,000 ids to arrays of 64 bytes, batches of 256. `aug28`, `aug96`: pad-4 random crop, flip, brightness
and Gaussian noise in NumPy on uint8 images of 28x28x1 and 96x96x3, batches of 64; peers seed `default_rng((seed, i))` for
each element, as they have nothing of their own for it (grain: its `random_map`). "DataLoader" and "the same dataset"
are one ordinary dataset, which draws from NumPy's global generator, in samebits' loader and in torch's.
`draws`: CPU time that an element costs more in samebits' loader than in torch's, by the generators that it draws from.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

import figures
import numpy as np

SEED, SECONDS, BATCH = 7, 4.0, {"cheap": 256, "aug28": 64, "aug96": 64}
ITEMS = {"cheap": 200_000, "aug28": 20_000, "aug96": 3_000}
SHAPES = {"aug28": (28, 28, 1), "aug96": (96, 96, 3)}


def cheap(i):
    return np.full(8, i, np.int64)


def images(work):
    return np.random.default_rng(0).integers(0, 256, (256, *SHAPES[work]), dtype=np.uint8)


def augment(image, rng):
    h, w, _ = image.shape
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    y, x = rng.integers(0, 9, 2)
    out = padded[y : y + h, x : x + w]
    if rng.random() < 0.5:
        out = out[:, ::-1]
    out = out.astype(np.float32) + np.float32(rng.uniform(-32, 32))
    out += rng.standard_normal(out.shape, dtype=np.float32) * np.float32(8)
    return np.clip(out, 0, 255).astype(np.uint8)


class Seeded:
    """One element of the work, for peers: the generator is seeded by the index."""

    def __init__(self, work):
        self.work, self.images = work, None if work == "cheap" else images(work)

    def __len__(self):
        return ITEMS[self.work]

    def __getitem__(self, i):
        if self.images is None:
            return cheap(i)
        return augment(self.images[i % 256], np.random.default_rng((SEED, i)))


class Drawing(Seeded):
    """The same for a drop-in loader: an ordinary dataset, which draws from NumPy's global generator."""

    def __getitem__(self, i):
        return cheap(i) if self.images is None else augment(self.images[i % 256], GlobalDraws)


class GlobalDraws:
    """NumPy's global generator under the names of its new one."""

    integers, random, uniform = np.random.randint, np.random.random, np.random.uniform

    @staticmethod
    def standard_normal(shape, dtype):
        return np.random.standard_normal(shape).astype(dtype)  # noqa: NPY002 (what ordinary datasets draw from)


def stacked(rows):
    import torch

    return torch.from_numpy(np.stack(rows))


def samebits(work, workers, *, switch=False, vectorised=False):
    import samebits
    from samebits.data import Pipeline

    samebits.set_random_seed(SEED)
    if switch:
        samebits.enable_op_determinism()
    numbers = Pipeline.range(ITEMS[work])
    if vectorised:
        return numbers.batch(BATCH[work]).map_batches(vector_augment(work), num_parallel_calls=workers)
    if work == "cheap":
        mapped = numbers.map(cheap, num_parallel_calls=workers)
    else:
        all_images = images(work)
        mapped = numbers.map(lambda i, rng: augment(all_images[i % 256], rng), num_parallel_calls=workers)
    return mapped.batch(BATCH[work], collate=stacked)


def vector_augment(work):
    """The same augmentation of a whole batch at once: one key for each row."""
    import torch

    from samebits import random

    h, w, c = SHAPES[work]
    all_images = torch.from_numpy(np.pad(images(work), ((0, 0), (4, 4), (4, 4), (0, 0))))

    def whole(ids, key):
        rows = len(ids)
        keys = random.split(key, 4)
        corner = random.randint(keys[0].view(rows, 1, 2), rows, 2, high=9)
        flip = random.bernoulli(keys[1], rows, dtype=torch.bool)
        x = torch.arange(w)
        x = corner[:, 1:] + torch.where(flip[:, None], w - 1 - x, x)
        y = corner[:, :1] + torch.arange(h)
        out = all_images[(ids % 256)[:, None, None], y[:, :, None], x[:, None, :]].to(torch.float32)
        out += random.uniform(keys[2], rows, low=-32, high=32)[:, None, None, None]
        out += random.normal(keys[3].view(rows, 1, 1, 1, 2), rows, h, w, c, std=8)
        return out.clamp_(0, 255).to(torch.uint8)

    return whole


def torch_loader(work, workers):
    from torch.utils.data import DataLoader

    return DataLoader(Seeded(work), batch_size=BATCH[work], num_workers=workers, collate_fn=stacked)


def drop_in(work, workers):
    import samebits

    samebits.set_random_seed(SEED)
    return samebits.data.DataLoader(
        Drawing(work), batch_size=BATCH[work], num_workers=workers, collate_fn=stacked
    )


def torch_drawing(work, workers):
    from torch.utils.data import DataLoader

    return DataLoader(Drawing(work), batch_size=BATCH[work], num_workers=workers, collate_fn=stacked)


def stateful_loader(work, workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Seeded(work), batch_size=BATCH[work], num_workers=workers, collate_fn=stacked)


def nodes(work, workers):
    import torchdata.nodes as tn

    data = Seeded(work)
    node = tn.IterableWrapper(range(len(data)))
    if workers:
        node = tn.ParallelMapper(
            node, data.__getitem__, num_workers=workers, in_order=True, method="process", prebatch=64
        )
    else:
        node = tn.Mapper(node, data.__getitem__)
    return tn.Loader(tn.Mapper(tn.Batcher(node, BATCH[work], drop_last=False), stacked))


def grain(work, workers):
    import grain

    if work == "cheap":
        data = grain.MapDataset.range(ITEMS[work]).map(cheap)
    else:
        all_images = images(work)
        data = (
            grain.MapDataset.range(ITEMS[work])
            .seed(SEED)
            .map(lambda i: all_images[i % 256])
            .random_map(augment)
        )
    read = data.batch(BATCH[work]).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    return read.mp_prefetch(grain.MultiprocessingOptions(workers, 2)) if workers else read


def spdl(work, workers):
    from spdl.pipeline import PipelineBuilder

    data = Seeded(work)
    pipeline = (
        PipelineBuilder().add_source(range(len(data))).aggregate(BATCH[work])
        .pipe(lambda ids: stacked([data[i] for i in ids]), concurrency=workers, output_order="input")
        .add_sink(4).build(num_threads=workers + 1)
    )  # fmt: skip

    def read():
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=120)

    return read()


VARIANTS = {
    "samebits:0": lambda work: samebits(work, 0),
    "samebits:2": lambda work: samebits(work, 2),
    "samebits:2 switch on": lambda work: samebits(work, 2, switch=True),
    "samebits:auto": lambda work: samebits(work, "auto"),
    "samebits:0 map_batches": lambda work: samebits(work, 0, vectorised=True),
    "samebits:2 map_batches": lambda work: samebits(work, 2, vectorised=True),
    "samebits:0 DataLoader": lambda work: drop_in(work, 0),
    "samebits:2 DataLoader": lambda work: drop_in(work, 2),
    "torch:0 the same dataset": lambda work: torch_drawing(work, 0),
    "torch:2 the same dataset": lambda work: torch_drawing(work, 2),
    "torch:0": lambda work: torch_loader(work, 0),
    "torch:2": lambda work: torch_loader(work, 2),
    "stateful:2": lambda work: stateful_loader(work, 2),
    "nodes:2": lambda work: nodes(work, 2),
    "grain:0": lambda work: grain(work, 0),
    "grain:2": lambda work: grain(work, 2),
    "spdl:2": lambda work: spdl(work, 2),
}


def rate(work, variant):
    """Items per second from the first batch to the last."""
    iterator = iter(VARIANTS[variant](work))
    next(iterator)
    began, batches = time.perf_counter(), 0
    for _ in iterator:
        batches += 1
        if time.perf_counter() - began > SECONDS:
            break
    return batches * BATCH[work] / (time.perf_counter() - began)


def resume():
    """Milliseconds to batch 10**6 + 1 of a shuffled, mapped and filtered pipeline; us per state_dict; calls re-run."""
    import samebits
    from samebits.data import Pipeline

    samebits.set_random_seed(SEED)
    calls = 0

    def counted(i):
        nonlocal calls
        calls += 1
        return i + 1

    def build():
        return Pipeline.range(10**9).shuffle().map(counted).filter(lambda i: i % 3 > 0).batch(2)

    iterator = iter(build())
    for _ in range(10**6):
        next(iterator)
    began = time.perf_counter()
    for _ in range(1000):
        state = iterator.state_dict()
    state_us = (time.perf_counter() - began) * 1e3
    calls = 0
    pipeline = build()
    began = time.perf_counter()
    pipeline.load_state_dict(json.loads(json.dumps(state)))
    next(iter(pipeline))
    return {"resume_ms": (time.perf_counter() - began) * 1e3, "state_us": state_us, "calls": calls,
            "state_bytes": len(json.dumps(state))}  # fmt: skip


class OneOfEach:
    """Draws one number from each generator of the process."""

    def __len__(self):
        return 6400

    def __getitem__(self, i):
        import torch

        return random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002


class NoDraw(OneOfEach):
    def __getitem__(self, i):
        return i


class OwnDraws(OneOfEach):
    """Draws one number from each of five generators of its own."""

    def __init__(self, make):
        self.generators = [make(i) for i in range(5)]

    def __getitem__(self, i):
        return sum(generator.random() for generator in self.generators)


def draws():
    """Microseconds of CPU that an element costs more than in torch's loader: the best of interleaved readings."""
    import torch

    import samebits

    samebits.set_random_seed(SEED)
    datasets = {
        "none": NoDraw(), "torch, NumPy, Python": OneOfEach(), "5 numpy default_rng": OwnDraws(np.random.default_rng),
        "5 numpy RandomState": OwnDraws(np.random.RandomState), "5 random.Random": OwnDraws(random.Random),
    }  # fmt: skip

    def cpu(loader, dataset):
        iterator = iter(loader(dataset, batch_size=BATCH["aug28"], collate_fn=len))
        next(iterator)
        began, batches = time.process_time(), sum(1 for _ in iterator)
        return (time.process_time() - began) / (batches * BATCH["aug28"]) * 1e6

    found = {}
    for name, dataset in datasets.items():
        pairs = [
            (cpu(torch.utils.data.DataLoader, dataset), cpu(samebits.data.DataLoader, dataset))
            for _ in range(7)
        ]
        found[name] = min(ours for _, ours in pairs) - min(theirs for theirs, _ in pairs)
    return found


def measured(*arguments):
    """What one process prints, or None where a peer is not installed or fails."""
    env = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    run = subprocess.run(
        [sys.executable, __file__, "--one", *arguments], capture_output=True, text=True, env=env, timeout=300
    )
    if run.returncode:
        print(
            f"{' '.join(arguments)}: {(run.stderr.strip().splitlines() or ['failed'])[-1]:.150}",
            file=sys.stderr,
        )
        return None
    return json.loads(run.stdout.strip().splitlines()[-1])


def wanted(work, words):
    for variant in VARIANTS:
        if work == "cheap" and "map_batches" in variant:
            continue
        if any(word in variant for word in words):
            yield variant


def table(work, rounds, words):
    rates = {variant: [] for variant in wanted(work, words)}
    for number in range(rounds):
        for variant, so_far in rates.items():
            if number and not so_far:
                continue
            found = measured(work, variant)
            if found is not None:
                so_far.append(found)
    medians = {variant: statistics.median(found) for variant, found in rates.items() if found}
    peers = {variant: value for variant, value in medians.items() if not variant.startswith("samebits")}
    best = max(peers, key=peers.get)
    print(f"\n{work}: {rounds} rounds; ratio to the best peer, {best}")
    for variant, value in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"  {variant:24}{value / 1e3:10.1f}k/s{value / peers[best]:8.2f}")
    return {variant: (value / 1e3, value / peers[best]) for variant, value in medians.items()}


def tables_of(found):
    """The tables of a page: one dataset in samebits' loader and torch's, and every variant; by work, what `table` returns."""
    loader = [
        [work, workers, ours[0], theirs[0], ours[0] / theirs[0]]
        for work, rates in found.items() for workers in (0, 2)
        if (ours := rates.get(f"samebits:{workers} DataLoader")) and (theirs := rates.get(f"torch:{workers} the same dataset"))
    ]  # fmt: skip
    columns = [("work", ""), ("workers", ""), ("samebits", "{:.1f}"), ("torch", "{:.1f}")]
    ratio = ("samebits' speed in times of torch's", figures.RATIO)
    pipelines = [name for name in VARIANTS if not name.endswith((" DataLoader", " the same dataset"))]
    names = [name for name in pipelines if any(name in rates for rates in found.values())]
    titles = [pair for work in found for pair in ((work, "{:.1f}"), ("to the best peer", figures.RATIO))]
    cells = [
        [name, *(cell for rates in found.values() for cell in rates.get(name, (None, None)))]
        for name in names
    ]
    tables = {"loader": figures.table([*columns, ratio], loader)} if loader else {}
    head = ("thousands of items per second", "")
    return tables | ({"pipelines": figures.table([head, *titles], cells)} if names else {})


def main():
    file, found = figures.file_asked(), {}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="cheap,aug28,aug96,resume,draws")
    parser.add_argument(
        "--variants", default="", help="only variants whose name contains one of these words, by commas"
    )
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        alone = {"resume": resume, "draws": draws}
        print(json.dumps(alone[arguments.one[0]]() if arguments.one[0] in alone else rate(*arguments.one)))
        return
    for work in arguments.only.split(","):
        if work in ("resume", "draws"):
            rounds = [measured(work) for _ in range(arguments.rounds)]
            what = (
                "resume at batch 10**6"
                if work == "resume"
                else "us an element more than torch's loader, by draws"
            )
            print(f"\n{what}: {arguments.rounds} rounds, medians")
            for name in rounds[0]:
                print(f"  {name:24}{statistics.median(one[name] for one in rounds):10.2f}")
        else:
            found[work] = table(work, arguments.rounds, arguments.variants.split(","))
    figures.save(file, **tables_of(found))


if __name__ == "__main__":
    main()
