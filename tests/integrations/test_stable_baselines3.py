"""Stable-Baselines3 with `samebits.integrations.stable_baselines3.Resumable`: programs that are killed and started again."""

import itertools
from pathlib import Path

import pytest

sb3 = pytest.importorskip("stable_baselines3")

import gymnasium
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from killed_programs import SEEDS, killed, whole
from samebits.errors import IncompleteStateError, InvalidArgumentError, RunMismatchError, UnimplementedError
from samebits.integrations.stable_baselines3 import Resumable

HERE = Path(__file__).parent
PROGRAM = HERE / "stable_baselines3_program.py"
OTHERS = [(seed, name) for seed in (0, 1) for name in ("A2C", "DQN", "SAC", "TD3")]
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


def test_killed_once_it_ends_as_when_nobody_kills(tmp_path):
    """Policy, optimizer, environments, evaluations and counts are equal."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT)
    assert killed([PROGRAM, "resumable"], tmp_path / "killed", steps, kills=1, **SUPPORT) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed, algorithm", [*((seed, "PPO") for seed in SEEDS), *OTHERS])
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed, algorithm):
    """Equal, too, are replay buffers, action noise and gSDE, in rollouts by steps and by episodes."""
    given = {**SUPPORT, "ALGORITHM": algorithm}
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **given)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **given)
    assert found == expected


class Cycled(gymnasium.Wrapper):
    """An environment that keeps an iterator."""

    def __init__(self, env):
        super().__init__(env)
        self.turns = itertools.cycle([1.0, 2.0])

    def step(self, action):
        next(self.turns)
        return super().step(action)


class Counted(Cycled):
    """The same, with a state_dict."""

    def state_dict(self):
        return {"left": self.env.unwrapped.state.tolist()}

    def load_state_dict(self, state):
        self.env.unwrapped.state = state["left"]


def model_of(env="CartPole-v1"):
    return sb3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=1)


def test_an_environment_with_state_in_c_is_an_error(tmp_path):
    """It is named, before a step is made; a state_dict of its class, or ignore, is the cure."""
    env = gymnasium.make("CartPole-v1")
    path = r"model\.env\.envs\[0\]\.env\.turns"
    model = model_of(Cycled(env))
    with pytest.raises(InvalidArgumentError, match=path):
        model.learn(8, Resumable(tmp_path / "a"))
    assert (model.num_timesteps, type(model)) == (0, sb3.PPO)
    assert (
        model.learn(8, Resumable(tmp_path / "b", ignore=["model.env.envs[0].env.turns"])).num_timesteps == 8
    )
    assert model_of(Counted(env)).learn(8, Resumable(tmp_path / "c")).num_timesteps == 8


def made():
    return gymnasium.make("CartPole-v1")


@pytest.mark.slow
def test_environments_in_processes_are_an_error(tmp_path):
    """SubprocVecEnv is refused, and DummyVecEnv trains."""
    env = SubprocVecEnv([made], start_method="fork")
    try:
        with pytest.raises(UnimplementedError, match="Use DummyVecEnv"):
            model_of(env).learn(8, Resumable(tmp_path / "a"))
    finally:
        env.close()
    assert model_of(DummyVecEnv([made])).learn(8, Resumable(tmp_path / "b")).num_timesteps == 8


def test_a_model_that_a_closure_reads_is_no_alarm(tmp_path):
    """A replay buffer, of which a commit has the rows that were written, is saved; a list that changes beside it is not."""
    model = sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=4, buffer_size=50, seed=1)
    seen = []

    class Reads(BaseCallback):
        def _on_step(self):
            return model.num_timesteps > 0

    class Keeps(BaseCallback):
        def _on_step(self):
            seen.append(model.num_timesteps + len(seen))
            return True

    with pytest.raises(IncompleteStateError, match="seen"):
        model.learn(20, [Keeps(), Resumable(tmp_path / "a")])
    assert model.learn(20, [Reads(), Resumable(tmp_path / "b")]).num_timesteps == 20


def test_a_folder_is_of_one_call_of_learn(tmp_path):
    """Neither a used object nor another number of timesteps is taken for the run; one with the same trains nothing."""
    model, callback = model_of(), Resumable(tmp_path)
    model.learn(16, callback)
    with pytest.raises(InvalidArgumentError, match="of its own"):
        model.learn(16, callback)
    with pytest.raises(RunMismatchError, match=r"16 timesteps, this is learn\(24\)"):
        model_of().learn(24, Resumable(tmp_path))
    again = model_of()
    again.train = None  # is not called
    assert again.learn(16, Resumable(tmp_path)).num_timesteps == 16


def test_checkpoints_hold_nothing_of_the_adapter(tmp_path):
    """A model that was saved during training loads as what it is, and learns without a run."""
    model_of().learn(16, [Resumable(tmp_path / "run"), CheckpointCallback(12, tmp_path / "files")])
    loaded = sb3.PPO.load(tmp_path / "files" / "rl_model_12_steps.zip", made())
    assert type(loaded) is sb3.PPO
    assert not {"collect_rollouts", "train"} & set(vars(loaded))
    assert loaded.learn(8).num_timesteps == 8


def test_another_version_is_named(tmp_path, monkeypatch):
    """Without a private method that the adapter overrides, the model is refused, with the version that has it."""
    model = model_of()
    monkeypatch.delattr(sb3.common.base_class.BaseAlgorithm, "_update_current_progress_remaining")
    with pytest.raises(UnimplementedError, match=r"has no BaseAlgorithm\._update.*stable-baselines3=="):
        model.learn(8, Resumable(tmp_path))
