"""Objects of known classes go into a run as they are: the adapter for each restores all that decides what
comes next.
"""

import copy
import random
from collections import Counter, deque

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from samebits.checkpoint._codec import decode, encode
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.state import adapter_for
from samebits.state._known_classes import is_known


def commit(thing):
    return copy.deepcopy(decode(*encode(adapter_for(thing).state_dict())))


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (random.Random, random.Random.random),
        (np.random.default_rng, np.random.Generator.random),
        (np.random.RandomState, np.random.RandomState.rand),
        (np.random.Philox, np.random.BitGenerator.random_raw),
        (lambda seed: torch.Generator().manual_seed(seed), lambda one: torch.rand(1, generator=one).item()),
    ],
)
def test_a_generator_continues(make, draw):
    """A generator of each library continues in place; one with another seed (control) draws other numbers."""
    first, second = make(1), make(2)
    draw(first)
    saved = commit(first)
    expected = [draw(first) for _ in range(3)]
    assert [draw(second) for _ in range(3)] != expected
    adapter_for(second).load_state_dict(saved)
    assert [draw(second) for _ in range(3)] == expected


@pytest.mark.parametrize(
    ("full", "empty"),
    [
        ([1, [2.5, "a"]], []), ({"a": 1, 2: [3]}, {"b": 4}), (deque([1, 2], maxlen=2), deque(maxlen=2)),
        (Counter("aab"), Counter()), ({1, 2}, {3}), (bytearray(b"ab"), bytearray()), (np.arange(3), np.zeros(3, int)),
    ],
)  # fmt: skip
def test_a_container_is_filled_in_place(full, empty):
    """Containers and arrays take the saved content, and stay the object that the program holds."""
    held = empty
    adapter_for(empty).load_state_dict(commit(full))
    assert type(held) is type(full) and repr(held) == repr(full)
    with pytest.raises(RunMismatchError, match="is of a"):
        adapter_for(empty).load_state_dict(commit(random.Random(1)))


def test_unknown_classes_have_no_adapter():
    """A class that nobody registered, a module and a number have none, and a `Run` says what to do."""
    for thing in (object(), nn.Linear(1, 1), 3, "a", (1,)):
        assert adapter_for(thing) is None and not is_known(type(thing))
    with pytest.raises(InvalidArgumentError, match=r'env=samebits.state.attributes\(env, "a", "b"\)'):
        samebits.Run(None, env=object())


def test_an_option_with_a_typing_error_is_no_object():
    """Run(ignores=[...]) is refused with the option that was meant; a list of another name (control) is an
    object.
    """
    with pytest.raises(InvalidArgumentError, match="no option of Run has this name. ignore has"):
        samebits.Run(None, ignores=["a"])
    assert list(samebits.Run(None, losses=[0.5]).objects) == ["losses"]
    with pytest.raises(InvalidArgumentError, match="commit_every=5.*the options are run_dir, save, "):
        samebits.Run(None, commit_every=5)


ROLLOUT = """
import os, sys, torch, samebits, gymnasium
def main(folder, kill, save):
    samebits.set_random_seed(1)
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.Adam(model.parameters(), 0.01)
    objects = {"model": model, "opt": opt, **({"env": env} if save else {})}
    obs, _ = env.reset(seed=3)
    env.action_space.seed(4)
    with samebits.Run(folder, save=3, check_complete=save, **objects) as run:
        run.state.setdefault("obs", obs)
        for step, _ in run.steps(range(90)):
            greedy = int(model(torch.as_tensor(run.state.obs)).argmax())
            action = env.action_space.sample() if torch.rand(()) < 0.5 else greedy
            run.state.obs, reward, terminated, truncated, _ = env.step(action)
            loss = (model(torch.as_tensor(run.state.obs)).sum() - reward) ** 2
            opt.zero_grad(); loss.backward(); opt.step()
            if terminated or truncated:
                run.state.obs, _ = env.reset()
            if step.number == kill:
                os.kill(os.getpid(), 9)
    print(*[float(p).hex() for p in model.weight.flatten()])
main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "save")
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_cartpole_killed_at_random_steps_ends_with_equal_weights(python, tmp_path, seed):
    """`Run(env=env)` saves the environment: five kills, equal weights; without it (control) other weights."""
    pytest.importorskip("gymnasium")
    whole = python(ROLLOUT, tmp_path / "whole", -1, "save").stdout
    kills = sorted(random.Random(seed).sample(range(4, 90), 5))
    for kind, times in (("save", kills), ("without", kills[:1])):
        for kill in times:
            python(ROLLOUT, tmp_path / kind, kill, kind, code=-9)
        assert (python(ROLLOUT, tmp_path / kind, -1, kind).stdout == whole) == (kind == "save")


ENVIRONMENTS = (
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("Taxi-v4", "FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1"),
)


def rollout(env):
    out = []
    for _ in range(120):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        out.append((np.asarray(obs).tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            env.reset()
    return out


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_continues(name):
    """Physics, counters of wrappers and all generators come back, also in one that was never reset; a fresh
    one (control) differs.
    """
    gymnasium = pytest.importorskip("gymnasium")

    def make(seed):
        env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))
        env.reset(seed=seed)
        env.action_space.seed(seed)
        return env

    first, second, never_reset = (
        make(3),
        make(9),
        gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name)),
    )
    first.step(first.action_space.sample())
    saved = commit(first)
    expected = rollout(first)
    for env in (second, never_reset):
        adapter_for(env).load_state_dict(copy.deepcopy(saved))
        assert rollout(env) == expected
    assert rollout(make(9)) != expected


def test_vectors_of_environments():
    """A SyncVectorEnv continues; one whose environments are in other processes is refused with what to use."""
    gymnasium = pytest.importorskip("gymnasium")

    def make(seed, mode="sync"):
        envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode)
        envs.reset(seed=seed)
        envs.action_space.seed(seed)
        return envs

    def numbers(envs):
        return [envs.step(envs.action_space.sample())[0].tolist() for _ in range(60)]

    first, second = make(1), make(2)
    numbers(first)
    saved = commit(first)
    expected = numbers(first)
    assert numbers(second) != expected
    adapter_for(second).load_state_dict(saved)
    assert numbers(second) == expected
    apart = make(1, "async")
    try:
        with pytest.raises(InvalidArgumentError, match='vectorization_mode="sync"'):
            adapter_for(apart)
    finally:
        apart.close()


def test_metrics_of_torchmetrics():
    """A metric, a collection and a wrapper continue, though their own state_dict is empty (control); also a
    second time.
    """
    metrics = pytest.importorskip("torchmetrics")

    def update(metric, generator):
        if isinstance(metric, metrics.MetricCollection):
            scores = torch.rand(8, 3, generator=generator).softmax(1)
            metric.update(scores, torch.randint(3, (8,), generator=generator))
        else:
            metric.update(torch.rand(1, generator=generator))

    def collection():
        kinds = metrics.classification
        return metrics.MetricCollection(
            {"a": kinds.MulticlassAccuracy(3), "b": kinds.MulticlassF1Score(3), "c": kinds.MulticlassAUROC(3)}
        )

    for make in (metrics.MeanMetric, collection, lambda: metrics.aggregation.RunningMean(3)):
        first, second, generator = make(), make(), torch.Generator().manual_seed(1)
        assert not first.state_dict()
        for _ in range(4):
            update(first, generator)
        saved, before = commit(first), generator.get_state()
        update(first, generator)
        expected = repr(first.compute())
        for _ in range(2):
            adapter_for(second).load_state_dict(copy.deepcopy(saved))
            update(second, generator.set_state(before))
            assert repr(second.compute()) == expected


@pytest.mark.first_case_quick
@pytest.mark.parametrize("library", ["monai", "albumentations"])
def test_generators_of_transforms(library, monkeypatch):
    """The generators of a Compose and of its transforms continue; one with another seed (control) gives other
    images.
    """
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    if library == "monai":
        monai = pytest.importorskip("monai.transforms")
        image = torch.arange(64.0).reshape(1, 8, 8)

        def make(seed):
            steps = [monai.RandFlip(0.5), monai.RandGaussianNoise(0.8)]
            transform = monai.Compose(steps).set_random_state(seed)
            return transform, lambda: transform(image).tolist()
    else:
        albumentations = pytest.importorskip("albumentations")
        image = np.full((8, 8, 3), 90, np.uint8)

        def make(seed):
            steps = [albumentations.HorizontalFlip(p=0.5), albumentations.GaussNoise(p=1)]
            transform = albumentations.Compose(steps, seed=seed)
            return transform, lambda: transform(image=image)["image"].tolist()

    (first, draw), (second, again) = make(3), make(4)
    draw()
    saved = commit(first)
    expected = [draw() for _ in range(4)]
    assert [again() for _ in range(4)] != expected
    adapter_for(second).load_state_dict(saved)
    assert [again() for _ in range(4)] == expected


ACCUMULATION = """
import os, sys, torch, samebits
from accelerate import Accelerator
def main(folder, kill, save):
    samebits.set_random_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = torch.nn.Linear(3, 1)
    model, opt = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    objects = {"model": model, "opt": opt, **({"accelerator": accelerator} if save else {})}
    with samebits.Run(folder, save=1, check_complete=save, **objects) as run:
        for step, x in run.steps(samebits.data.DataLoader(torch.randn(40, 3), batch_size=2)):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                opt.step()
                opt.zero_grad()
            if step.number == kill:
                os.kill(os.getpid(), 9)
    print(*[float(p).hex() for p in model.weight.flatten()])
main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "save")
"""


@pytest.mark.slow
def test_an_accumulation_of_accelerate_is_cut_nowhere_else(python, tmp_path):
    """`Run(accelerator=accelerator)` saves its counters: equal weights after kills; without them (control)
    others.
    """
    pytest.importorskip("accelerate")
    whole = python(ACCUMULATION, tmp_path / "whole", -1, "save").stdout
    for kind in ("save", "without"):
        for kill in (4, 10):
            python(ACCUMULATION, tmp_path / kind, kill, kind, code=-9)
        assert (python(ACCUMULATION, tmp_path / kind, -1, kind).stdout == whole) == (kind == "save")
