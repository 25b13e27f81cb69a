"""Random programs: captured, analysed, and run on all of their ranks, to compare every value with what was claimed."""

import dataclasses
import logging
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace

import torch
import torch.distributed as dist
from hypothesis import strategies as st

import replica_ops as ops
from replica_lockstep import Hang, Ranks, bits_of, kept_graphs
from samebits import replica

logging.getLogger("torch.__trace").propagate = False  # pytest would keep megabytes of it
MESHES = [(2,), (3,), (4,), (6,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2)]
INPUTS = ("x0", "x1", "x2", "i0")
GENERATOR = "generator:cpu"


@dataclass(frozen=True)
class Drawn:
    """One random program and how its inputs start."""

    mesh: tuple[int, ...]
    instructions: tuple[tuple[str, int, int, int, int], ...]
    """(name, first value, second value, small number, which groups)."""
    classes: dict[str, tuple[int, ...]]
    """One label per rank: of each input, and of the generator's seed."""
    subgroups: tuple[tuple[int, ...], ...] = ()
    fresh: bool = True
    """Whether it works on copies of its inputs; else it writes to them, and they live from step to step."""
    feedback: bool = False
    """Whether its last value is an input of the next step."""

    @property
    def ranks(self):
        return prod(self.mesh)

    @property
    def everywhere(self):
        """Whether the code asks for its rank, so that it has to run as each."""
        return bool(self.subgroups) or any(one[0] in ops.EVERYWHERE for one in self.instructions)


def programs(plain, grouped, by_rank=False, shortest=2, longest=5):
    """Programs of instructions from two tables; `by_rank`: with arguments, and groups, that are not the same on all ranks.

    Hypothesis draws the seed of each, not its parts: of parts, it makes mostly small changes to programs that it had.
    """
    return st.randoms(use_true_random=True).map(
        lambda source: _drawn(source, [*plain, *grouped], by_rank, source.randint(shortest, longest))
    )


def _drawn(source, names, by_rank, length):
    mesh = source.choice(MESHES[:3] + MESHES[5:7] if by_rank else MESHES)
    small = lambda: source.randrange(12)
    return Drawn(
        mesh,
        tuple((source.choice(names), small(), small(), small(), source.randrange(4)) for _ in range(length)),
        {name: _classes(source, mesh) for name in (*INPUTS, GENERATOR)},
        _partition(source, prod(mesh)) if by_rank and source.random() < 0.5 else (),
        source.random() < 0.5,
        source.random() < 0.3,
    )


def _classes(source, mesh):
    """One label per rank: all the same, all different, along an axis, or at random."""
    ranks, last = prod(mesh), mesh[-1]
    kind = source.choice(["equal", "equal", "distinct", "distinct", "rows", "columns", "any"])
    by = {
        "equal": lambda r: 0,
        "distinct": lambda r: r,
        "rows": lambda r: r // last,
        "columns": lambda r: r % last,
    }
    return tuple(by.get(kind, lambda r: source.randrange(3))(rank) for rank in range(ranks))


def _partition(source, ranks):
    """Ranks in groups, of any sizes that divide ROWS."""
    order, groups = source.sample(range(ranks), ranks), []
    while order:
        size = source.choice([one for one in (1, 2, 3, 4, 6) if one <= len(order)])
        groups.append(tuple(sorted(order[:size])))
        order = order[size:]
    return tuple(groups)


def smallest(drawn, fails):
    """The program without the instructions that it does not need to fail."""
    for index in range(len(drawn.instructions)):
        kept = drawn.instructions[:index] + drawn.instructions[index + 1 :]
        if kept and fails(less := dataclasses.replace(drawn, instructions=kept)):
            return smallest(less, fails)
    return drawn


def step_of(drawn):
    """The program as a step over its inputs, as a user would write it."""
    generator = torch.Generator()
    buffer = torch.ones(ops.ROWS, 2)
    state = SimpleNamespace(buffer=buffer, row=buffer[2], generator=generator)

    def step(x0, x1, x2, i0, mesh):
        c = state
        c.rank, c.statistics = dist.get_rank(), lambda: (c.buffer[0], c.row)
        groups = [dist.group.WORLD, *(mesh.get_group(axis) for axis in mesh.mesh_dim_names)]
        groups += [own for ranks in drawn.subgroups for own in [dist.new_group(ranks)] if c.rank in ranks]
        values, copied = [x0, x1, x2, i0], set()
        for name, one, two, small, where in drawn.instructions:
            taken = [-1 - number % len(values) for number in (one, two)]
            if drawn.fresh:
                for place in {place % len(values) for place in taken} & set(range(len(INPUTS))) - copied:
                    values[place] = values[place].clone()
                    copied.add(place)
            a, b = (values[place] for place in taken)
            if name in ops.GROUPED:
                value = ops.GROUPED[name](c, a, b, small, groups[-1 - where % len(groups)])
            else:
                value = ops.PLAIN[name](c, a, b, small)
            assert value.shape == (ops.ROWS, 2), f"{name} gives {value.shape}"
            values.append(value)
        return {"all": values[len(INPUTS) :], "next": ops.real(values[-1]) * 1}

    return step


def captured(drawn):
    """(step, graphs of its ranks)."""
    axes = dict(zip(("dp", "tp"), drawn.mesh))
    zeros = [torch.zeros(ops.ROWS, 2) for _ in INPUTS[:3]] + [torch.zeros(ops.ROWS, 2, dtype=torch.int64)]
    with kept_graphs(drawn.ranks, drawn.mesh, drawn.everywhere) as graphs:
        return replica.capture(step_of(drawn), *zeros, mesh=axes), graphs


def analyzed(drawn, step):
    inputs = {
        name: replica.Partition([[r for r, l in enumerate(labels) if l == label] for label in set(labels)])
        for name, labels in drawn.classes.items()
        if name in step.kinds
    }
    others = {name: replica.Equal() for name in step.kinds if name not in inputs}
    return replica.analyze(step, {**others, **inputs}, {"x0": "output.next"} if drawn.feedback else None)


def run(drawn, step, graphs, seed, steps):
    """For each step of a run: the bits of every value on every rank; inputs are redrawn unless they are written to."""
    source = torch.Generator().manual_seed(seed)
    ranks = Ranks(graphs, [seed * 1000 + label for label in drawn.classes[GENERATOR]])
    held, seen = {}, []
    for _ in range(steps):
        for name in INPUTS:
            if name not in held or (step.kinds[name] == "batch" and not (drawn.feedback and name == "x0")):
                held[name] = inputs_of(drawn.classes[name], name, source)
        results = ranks.step([[held[name][rank] for name in INPUTS] for rank in range(drawn.ranks)])
        ends = {f"{name} at the end": list(map(bits_of, one)) for name, one in held.items()}
        seen.append({**ranks.seen, **ends})
        if drawn.feedback:
            held["x0"] = [one[-1].clone() for one in results]
    return seen


def inputs_of(labels, name, source):
    def one():
        if name.startswith("i"):
            return torch.randint(0, ops.ROWS, (ops.ROWS, 2), generator=source)
        return torch.randn(ops.ROWS, 2, generator=source)

    made = {label: one() for label in sorted(set(labels))}
    return [made[label].clone() for label in labels]


@dataclass
class Verdict:
    """What came out of one program, counted in pairs of ranks over its values."""

    wrong: list = dataclasses.field(default_factory=list)
    equal: int = 0
    """Pairs that are equal in all draws and steps; `found` of them are claimed, `missed` are the names of those that are not."""
    found: int = 0
    missed: list = dataclasses.field(default_factory=list)
    partly_equal: int = 0
    """Of `equal`, those of values that are not equal on all ranks; `partly_found` of them are claimed."""
    partly_found: int = 0
    apart: int = 0
    """Pairs that differ in some draw or step: what a wrong claim could be about."""
    hangs: bool = False
    values: int = 0


def claimed_pairs(report, step):
    """For each name of `run`: the partition that was claimed of it."""
    ends = {f"{name} at the end": report.ends[name] for name in INPUTS}
    return {name: report.partitions.labels(one.partition) for name, one in {**report.values, **ends}.items()}


def judged(drawn, draws=5, longest=3):
    """Captures and analyses a program, runs some steps of it (state goes from one to the next) from each of 5 draws, and compares each value on each pair of ranks."""
    step, graphs = captured(drawn)
    report = analyzed(drawn, step)
    found = Verdict(hangs=any(one.kind == "hang" for one in report.findings))
    kept = sum(kind in {"state", "constant"} for kind in step.kinds.values()) + drawn.feedback
    with torch.no_grad():
        try:
            runs = [
                one for seed in range(draws) for one in run(drawn, step, graphs, seed, min(1 + kept, longest))
            ]
        except Hang as hang:
            if not found.hangs:
                found.wrong.append(str(hang))
            return found
    claims = claimed_pairs(report, step)
    for name in runs[0]:
        _compare(found, name, claims[name], [one[name] for one in runs])
    return found


def _compare(found, name, claim, seen):
    found.values += 1
    same = [labels_of(bits) for bits in seen]
    together = list(zip(*same))
    everywhere = all(one == together[0] for one in together)
    for a in range(len(claim)):
        for b in range(a):
            equal, said = together[a] == together[b], claim[a] == claim[b]
            if said and not equal:
                found.wrong.append((name, b, a))
            found.equal += equal
            found.apart += not equal
            found.found += equal and bool(said)
            if equal and not said:
                found.missed.append(name)
            if not everywhere:
                found.partly_equal += equal
                found.partly_found += equal and bool(said)


def labels_of(bits):
    """One label per rank: equal label, equal bits."""
    seen = {}
    return [seen.setdefault(one, len(seen)) for one in bits]
