"""The one contract of all stages: cut anywhere, the tail is the same, and the state is small plain JSON."""

import json

import numpy as np
import pytest
import torch

from samebits import random
from samebits.data import Pipeline
from samebits.data._options import Placement


def drawn(x):
    return x + torch.rand(()).item() + np.random.rand()


def with_rng(x, rng):
    return x + rng.random()


def with_key(x, key):
    return x + random.uniform(key, 1).item()


def noisy_rows(batch, key):
    return batch + random.uniform(key.view(-1, 2), len(batch))


def numbers(n=40):
    return Pipeline.range(n)


def odd():
    return numbers(60).map(drawn).filter(lambda x: int(x) % 3 != 1)


def sequences():
    return numbers(30).map(lambda n: torch.arange(n % 7 + 1))


STAGES = {
    "range": lambda: numbers(),
    "from_source": lambda: Pipeline.from_source(list("abcdefgh")),
    "from_iterable": lambda: Pipeline.from_iterable(lambda: (n * n for n in range(20))),
    "random": lambda: Pipeline.random(3).take(20),
    "zip": lambda: Pipeline.zip(numbers().map(drawn), numbers(30).map(drawn)),
    "zip of streams": lambda: Pipeline.zip(odd(), numbers(30)),
    "map": lambda: numbers().map(drawn),
    "map of a stream": lambda: odd().batch(3).map(lambda b: b * torch.rand(())),
    "map with rng": lambda: numbers().map(with_rng),
    "map with key": lambda: numbers().map(with_key),
    "map_batches": lambda: numbers().batch(8).map_batches(lambda b: b * 2),
    "filter": odd,
    "filter twice": lambda: odd().filter(lambda x: int(x) % 2),
    "flat_map": lambda: numbers(12).flat_map(lambda n: [n] * (n % 4)),
    "flat_map of a stream": lambda: odd().batch(4).flat_map(lambda b: list(b)),
    "map after flat_map": lambda: numbers(12).flat_map(lambda n: [n] * (n % 4)).map(drawn),
    "interleave": lambda: numbers(9).interleave(lambda n: [10 * n + i for i in range(n)], 3, 2),
    "interleave of pipelines": lambda: numbers(5).interleave(lambda n: numbers(n + 1).map(drawn), 2, 1),
    "interleave of a stream": lambda: odd().interleave(lambda n: range(int(n) % 4), 4, 3),
    "mix": lambda: Pipeline.mix([numbers(30).map(drawn), numbers(50).map(lambda x: -x)], [1, 2.5]),
    "mix of streams": lambda: Pipeline.mix([odd(), numbers(50)], [0.3, 0.7]),
    "concatenate": lambda: numbers(5).map(drawn).concatenate(numbers(7).map(drawn)),
    "concatenate of streams": lambda: odd().concatenate(odd(), numbers(3)),
    "shuffle": lambda: numbers().shuffle(),
    "shuffle buffer": lambda: numbers().shuffle(7),
    "shuffle buffer larger than the source": lambda: numbers().shuffle(100),
    "shuffle buffer over repeat": lambda: numbers(10).repeat().shuffle(15).take(70),
    "shuffle buffer of a stream": lambda: odd().shuffle(6),
    "repeat": lambda: numbers(6).shuffle().map(drawn).repeat(4),
    "repeat of a stream": lambda: numbers(6).map(drawn).filter(lambda x: int(x) % 2).repeat(4),
    "batch": lambda: numbers().batch(7),
    "batch dropping": lambda: numbers().batch(7, drop_remainder=True),
    "batch of a stream": lambda: odd().batch(4),
    "unbatch": lambda: numbers().batch(7).unbatch(),
    "padded_batch": lambda: sequences().padded_batch(4, padding_value=-1),
    "padded_batch of a stream": lambda: sequences().filter(lambda s: len(s) > 2).padded_batch(4),
    "bucket_by_length": lambda: sequences().bucket_by_length(len, [3, 5], [4, 3, 2]),
    "bucket_by_length of a stream": lambda: (
        sequences().filter(lambda s: len(s) > 1).bucket_by_length(len, [3], [4, 3])
    ),
    "pack": lambda: sequences().pack(10, open_rows=3),
    "take": lambda: numbers().take(11),
    "take of a stream": lambda: odd().take(11),
    "skip": lambda: numbers().skip(11),
    "skip of a stream": lambda: odd().skip(11),
    "shard": lambda: numbers().shard(3, 1),
    "shard of a stream": lambda: odd().shard(3, 1),
    "enumerate": lambda: numbers().map(drawn).enumerate(),
    "enumerate of a stream": lambda: odd().enumerate(5),
    "cache": lambda: numbers(10).map(drawn).cache().repeat(3),
    "cache of a stream": lambda: odd().cache().repeat(2),
    "prefetch": lambda: numbers().map(drawn).prefetch(3),
    "all together": lambda: (
        Pipeline.mix([odd().shuffle(5), numbers(40).shuffle().map(drawn)], [1, 1]).batch(3).repeat(2)
    ),
}


def plain(element):
    if isinstance(element, torch.Tensor | np.ndarray):
        return (str(element.dtype), list(element.shape), np.asarray(element).tobytes())
    if isinstance(element, dict):
        return {name: plain(value) for name, value in element.items()}
    return [plain(one) for one in element] if isinstance(element, tuple | list) else repr(element)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", STAGES)
def test_cut_anywhere_the_tail_is_the_same(name):
    """From the state after any k the same elements follow, in the first epoch and in the second."""
    pipeline = STAGES[name]().with_options(seed=5)
    generators = torch.get_rng_state(), np.random.get_state()[1].copy()
    for _ in range(2):
        iterator = iter(pipeline)
        states, elements = [iterator.state_dict()], []
        for element in iterator:
            elements.append(plain(element))
            states.append(iterator.state_dict())
        assert len(elements) > 4
        for k, state in enumerate(states):
            again = STAGES[name]().with_options(seed=5)
            again.load_state_dict(json.loads(json.dumps(state)))
            assert [plain(element) for element in again] == elements[k:], k
    assert torch.equal(generators[0], torch.get_rng_state())
    assert (generators[1] == np.random.get_state()[1]).all()


@pytest.mark.parametrize("name", STAGES)
def test_workers_give_the_same_elements(name):
    """Two workers give what none gives, and an iteration can go from the one to the other."""
    pipeline = STAGES[name]().with_options(seed=5)
    alone = [plain(element) for element in pipeline]
    iterator = iter(STAGES[name]().with_options(seed=5, num_parallel_calls=2))
    begun = [plain(next(iterator)) for _ in range(3)]
    rest = STAGES[name]().with_options(seed=5)
    rest.load_state_dict(iterator.state_dict())
    assert begun + [plain(element) for element in rest] == alone


def test_what_is_on_a_device_is_not_pinned(monkeypatch):
    """pin_memory pins what is on the CPU; a tensor that a stage has put on a device goes through as it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    placed = Placement(None, pin_memory=True)
    element = {"there": torch.zeros(3, device="meta"), "n": 1}
    with pytest.raises((RuntimeError, NotImplementedError)):  # what torch says of pinning it
        element["there"].pin_memory()
    assert placed(element)["there"] is element["there"]
