"""Commits of state in GPU memory: their bits, the cost of a snapshot per step, and the time of a restore."""

import shutil
import statistics
import time

import pytest
import torch
from torch import nn

from agreement import expected, same
from samebits import _digest as digest
from samebits.checkpoint._prepared_commit import CommitPreparer
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.snapshot_memory import SnapshotMemory
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed
from samebits.train import Run

SAVES = {"none": "explicit", "every 10": 10, "each step": 1, "3%": "3%"}
BITS = ["xxh3-128:0", "xxh3-128:1"]


class Task:
    """An MLP with Adam on rows of 64 numbers."""

    def __init__(self, hidden, device):
        torch.manual_seed(7)
        layers = nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, hidden), nn.ReLU()
        self.model = nn.Sequential(*layers, nn.Linear(hidden, 10)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        inputs, targets = torch.randn(45 * 32, 64), torch.randint(0, 10, (45 * 32,))
        self.batches = [(x.to(device), y.to(device)) for x, y in zip(inputs.split(32), targets.split(32))]

    def run(self, folder, save):
        return Run(folder, model=self.model, optimizer=self.optimizer, save=save, check_complete=False)

    def step(self, batch):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def bits(self):
        return digest.of_value([self.model.state_dict(), self.optimizer.state_dict()])

    def now(self):
        if next(self.model.parameters()).is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _trained(task, folder, save, steps):
    """Milliseconds per step, after waiting for the device, without the first steps."""
    set_random_seed(7)
    warm, began, ended = steps // 4, 0.0, 0.0
    with enable_op_determinism(), task.run(folder, save) as run:
        for step, batch in run.steps(task.batches, epochs=10**6):
            if step.number == warm:
                began = task.now()
            if step.number == warm + steps:
                ended = task.now()
                run.stop()
            task.step(batch)
    return (ended - began) / steps * 1e3


def cost(target, hidden):
    """The bits of the newest commit and of the model, and milliseconds per step, at four cadences in turn."""
    hidden, steps = (8, 8) if target.small else (hidden, 200)
    times, results = {name: [] for name in SAVES}, {}
    for _ in range(1 if target.small else 3):
        for name, save in SAVES.items():
            folder = target.folder / "run"
            shutil.rmtree(folder, ignore_errors=True)
            task = Task(hidden, target.device)
            times[name].append(_trained(task, folder, save, steps))
            _, saved = CommitStore(folder).newest() or (None, {})
            objects = saved["objects"]
            results[f"the model, {name}"] = task.bits()
            results[f"its commit, {name}"] = digest.of_value([objects["model"], objects["optimizer"]])
    median = {f"ms/step, {name}": statistics.median(values) for name, values in times.items()}
    size = sum(p.nbytes for p in task.model.parameters()) * 3 / 2**20
    ratio = median["ms/step, each step"] / median["ms/step, none"]
    target.figures |= {"MiB": size, **median, "each step / none": ratio}
    return results


@pytest.mark.limit(150)
@pytest.mark.parametrize("hidden", [128, 1024, 4096], ids=["0.3 MB", "13 MB", "200 MB"])
def test_commits_have_the_bits_of_the_model(target, hidden):
    """A commit has the model's bits, and the model those that it has without commits, at each cadence."""
    target.check(same, cost, hidden)


def restored(target):
    """The bits of a state of 600 MB before and after a restore, and the time of the restore."""
    hidden, folder = (8 if target.small else 7000), target.folder / "run"
    set_random_seed(7)
    task = Task(hidden, target.device)
    with task.run(folder, "explicit") as run:
        for _, batch in run.steps(task.batches[:1], epochs=1):
            task.step(batch)
    other = Task(hidden, target.device)
    began = other.now()
    with other.run(folder, "explicit"):
        target.figures["seconds"] = other.now() - began
        bits = other.bits()
    target.figures["GB"] = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e9
    return {"before": task.bits(), "after": bits}


@pytest.mark.limit(120)
def test_a_restore_gives_the_bits_of_the_state(target):
    """A new model on the device has, once restored, the bits that were committed."""
    target.check(same, restored)


PINNED = {"pinned": True, "copies": BITS, "originals": BITS, "a kernel behind them": 4.0}


def pinned(target):
    """Copies into memory that grows, for states that change."""
    slot, preparer = SnapshotMemory(), CommitPreparer()
    facts = {"step": 1, "position": {}, "finished": False, "program": {}, "environment": {}}
    copies, originals, unit = [], [], 10 if target.small else 10**6
    for count in (unit, unit + 1, 100 * unit):
        numbers = torch.arange(count, device=target.device)
        state = {"x": numbers, "y": torch.ones(count, 2, device=target.device).t()}
        prepared = preparer.prepare(state, **facts)
        for _ in range(3):
            state["x"] += 1
            began = time.perf_counter()
            slot.copy(preparer.prepare(state, **facts))
            target.figures["GB/s"] = count * 16 / (time.perf_counter() - began) / 1e9
        memory = torch.frombuffer(slot._memory.mapped(1), dtype=torch.uint8)
        names, spans = prepared.layout.names, prepared.layout.spans
        parts = {name: memory[begin:end].clone() for name, (begin, end) in zip(names, spans)}
        sources = dict(
            zip(names, (x.cpu().contiguous().view(-1).view(torch.uint8) for x in prepared.sources))
        )
        del memory
        copies.append(digest.of_value(dict(sorted(parts.items()))))
        originals.append(digest.of_value(dict(sorted(sources.items()))))
    behind = float(torch.ones(4, device=target.device).sum())
    results = {
        "pinned": bool(slot._pinned),
        "copies": copies,
        "originals": originals,
        "a kernel behind them": behind,
    }
    slot.close()
    return results


def judge_pinned(results):
    """Yields an error unless the memory was pinned and the copies are equal to what was copied."""
    return expected(**{**PINNED, "copies": results["copies"], "originals": results["copies"]})(results)


@pytest.mark.limit(120)
def test_memory_for_snapshots_is_pinned(target):
    """It stays pinned while it grows, the copies have the right bits, and kernels continue."""
    target.check(judge_pinned, pinned, example=PINNED)


# --- two ways to take a snapshot of 100 MB after each step: only times, to choose by ---


class Waiting:
    """The training waits for the device, then for the copy, as commits do."""

    def __init__(self, state):
        self.state, self.host = state, torch.empty_like(state, device="cpu", pin_memory=True)

    def take(self):
        torch.cuda.synchronize()
        self.host.copy_(self.state, non_blocking=True)
        torch.cuda.synchronize()

    def settle(self):
        """The copy is complete."""


class Beside:
    """A copy on the device, which a stream transfers while the next step runs; there is one copy on the device."""

    def __init__(self, state):
        self.state, self.kept = state, torch.empty_like(state)
        self.host = torch.empty_like(state, device="cpu", pin_memory=True)
        self.stream, self.there = torch.cuda.Stream(state.device), torch.cuda.Event()

    def take(self):
        self.there.synchronize()
        self.kept.copy_(self.state)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.host.copy_(self.kept, non_blocking=True)
            self.there.record(self.stream)

    def settle(self):
        self.there.synchronize()


STEPS = 40
ALTERNATIVES = {"waiting": [float(STEPS)] * 2, "beside": [float(STEPS)] * 2, "torn": 0}


def _step(state, work):
    for _ in range(20):  # of milliseconds
        work = (work @ work).tanh()
    state += 1


def _timed_way(state, work, way):
    """Milliseconds per step."""
    _step(state, work)
    state.zero_()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        _step(state, work)
        if way is not None:
            way.take()
    if way is not None:
        way.settle()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS * 1e3


def torn(state, work, way):
    """The number of snapshots that are not of one moment, or of another one, while the next step runs."""
    state.zero_()
    found = 0
    for number in range(1, 6):
        _step(state, work)
        way.take()
        state += 100  # the next step
        way.settle()
        found += not bool((way.host == number).all())
        state -= 100
    return found


def alternatives(target):
    state = torch.zeros(25_000_000, device=target.device)
    work = torch.randn(2048, 2048, device=target.device)
    ways, results = {"waiting": Waiting(state), "beside": Beside(state)}, {}
    target.figures["ms/step, none"] = _timed_way(state, work, None)
    for name, way in ways.items():
        state.zero_()
        target.figures[f"ms/step, {name}"] = _timed_way(state, work, way)
        results[name] = [float(way.host.min()), float(way.host.max())]
    return {**results, "torn": sum(torn(state, work, way) for way in ways.values())}


def test_a_copy_beside_the_training_is_timed(target):
    """Both ways give whole snapshots of the last step; their times per step are figures."""
    target.check(expected(**ALTERNATIVES), alternatives, example=ALTERNATIVES)


# --- controls, on the CPU ---


def test_what_a_snapshot_copies_is_judged(small):
    """The judge sees copies that differ from what they are of, and memory that was not pinned."""
    results = pinned(small)
    assert list(judge_pinned(results)) == ["pinned is False, not True"]
    other = {**results, "pinned": True, "copies": [*results["copies"][:2], "xxh3-128:torn"]}
    assert any("originals" in line for line in judge_pinned(other))


class Late:
    """A snapshot that is taken when somebody asks for it."""

    def __init__(self, state, late):
        self.state, self.host = state, state.clone()
        self.take, self.settle = (self.nothing, self.copy) if late else (self.copy, self.nothing)

    def copy(self):
        self.host.copy_(self.state)

    def nothing(self):
        pass


def test_a_torn_snapshot_is_counted():
    """What is copied after the training has gone on is torn, each time; what is copied at once is not."""
    state, work = torch.zeros(10), torch.ones(2, 2)
    assert torn(state, work, Late(state, True)) == 5 and torn(state, work, Late(state, False)) == 0
