"""Stable-Baselines3: `model.learn(n, callback=Resumable("runs/x"))` resumes to the same bits, in rollouts."""

from __future__ import annotations

import inspect
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from samebits.errors import InvalidArgumentError, RunMismatchError, UnimplementedError
from samebits.integrations._adapter import OpenRun, library_modules
from samebits.state._attributes import Attributes
from samebits.state._known_classes import is_state_of_environment, name_of_known
from samebits.state._parts import is_plain
from samebits.train._framework_privates import require_attributes

callbacks, vec_env, off_policy, on_policy, types, distributions = library_modules(
    "stable_baselines3",
    "stable-baselines3",
    "stable_baselines3.common.callbacks",
    "stable_baselines3.common.vec_env",
    "stable_baselines3.common.off_policy_algorithm",
    "stable_baselines3.common.on_policy_algorithm",
    "stable_baselines3.common.type_aliases",
    "stable_baselines3.common.distributions",
)

_CALL = "samebits.integrations.stable_baselines3.Resumable"
_WITHOUT_END = range(1 << 40)
"""Steps of a training that `learn` ends."""
_NO_STATE = {
    "BaseAlgorithm": {"start_time", "policy_kwargs", "train_freq", "replay_buffer_kwargs"},
    "BaseCallback": {"locals", "globals", "parent", "pbar"},
    "DummyVecEnv": {"buf_infos", "metadata"},
    "VecEnvWrapper": {"class_attributes"},
    "Resumable": {"_open", "_training", "_ignored"},
    "Monitor": {"t_start", "results_writer"},
    "VecMonitor": {"t_start", "results_writer"},
}
"""Attributes that are left out, by class: clocks, settings, files, and what each step sets anew."""


class Resumable(callbacks.BaseCallback):
    """Makes `model.learn` resume to the same bits: started again after a kill, it continues.

    ```python
    model = PPO("MlpPolicy", "CartPole-v1", seed=1)
    model.learn(100_000, callback=[samebits.integrations.stable_baselines3.Resumable("runs/cartpole"), ...])
    ```

    A commit holds policy and optimizers, the environments with their generators and wrappers (VecNormalize),
    the last observation, rollout and replay buffers, action noise, counters and schedules, and the attributes
    of all other callbacks with their environments (EvalCallback). Commits are made between two steps of the
    environment; with `use_sde`, or an algorithm that has a `collect_rollouts` of its own, between rollouts.

    Not covered: environments in processes (SubprocVecEnv), whose state cannot be read, and environments with
    state in C (Box2D, MuJoCo), unless they have `state_dict` and `load_state_dict`. Files that callbacks,
    Monitor or loggers write are not rewound, and clocks (`Monitor.episode_times`) are zero after a resume.

    Args:
        run_dir: folder of this run alone: one for each call of `learn`.
        options: those of `samebits.Run`: `save=`, `keep=`, ...; `ignore=["callback.writer"]` leaves out an
            attribute of a callback or, by "model.env...", of an environment.

    Raises:
        UnimplementedError: (in `learn`) this version of the library is not as it was, or the environment is
            not covered.
        InvalidArgumentError: (in `learn`) something that training changes cannot be saved, or this object was
            used before.
        RunMismatchError: (in `learn`) the run in the folder has another number of timesteps.
    """

    def __init__(self, run_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        ignored = list(options.pop("ignore", ()))
        self._ignored = [path for path in ignored if path.startswith(("model", "callback"))]
        rest = [path for path in ignored if path not in self._ignored]
        cures = "Resumable(ignore=[...]). To save a value: an attribute of a callback"
        self._open = OpenRun(run_dir, {**options, "ignore": rest}, cures)
        self._training: _Learning | None = None

    def _on_training_start(self) -> None:
        """Gives the model, for the time of `learn`, the methods that ask the run for steps."""
        if self._training is not None:
            raise InvalidArgumentError(
                "samebits.integrations.stable_baselines3.Resumable: this object was given to learn() before. "
                "Give each call of learn a Resumable of its own, with a folder of its own."
            )
        _check(self.model)
        top = self.locals.get("callback", self)
        self._training = _Learning(self._open, self.model, top, self._ignored)

    def _on_step(self) -> bool:
        return True


def _check(model: Any) -> None:
    require_attributes("stable-baselines3", model)
    env = model.env
    while isinstance(env, vec_env.VecEnvWrapper):
        env = env.venv
    if isinstance(env, vec_env.SubprocVecEnv):
        raise UnimplementedError(
            f"{_CALL}: the environments of a SubprocVecEnv are in processes of their own, where their state "
            "cannot be read. Use DummyVecEnv: make_vec_env(..., vec_env_cls=DummyVecEnv)."
        )


class _Stopped(Exception):  # noqa: N818
    """The run has no step left."""


class _Learning:
    """One call of `learn`, whose rollouts ask the run for their steps."""

    def __init__(self, opened: OpenRun, model: Any, callback: Any, ignored: list[str]) -> None:
        self._open, self._model, self._callback, self._ignored = opened, model, callback, ignored
        kind = self._class = type(model)
        self._on_policy = issubclass(kind, on_policy.OnPolicyAlgorithm)
        base = on_policy.OnPolicyAlgorithm if self._on_policy else off_policy.OffPolicyAlgorithm
        self._inside = kind.collect_rollouts is base.collect_rollouts and not model.use_sde
        """True if a boundary may be in a rollout, where the noise of gSDE is a tensor of a graph."""
        self.place = {"rollouts": 0, "steps": 0, "episodes": 0}
        """The rollouts that have ended, and what the one under way has done."""
        self.counts = False
        """True while `learn` counts through the rollouts that were done before the resume."""
        self._skipped = self._timesteps = 0
        self._steps: Iterator[Any] | None = None
        self._end = self._sampled = self._episodes = 0
        model.__class__ = _resumable(kind, self)
        self._hook = model.policy.register_forward_pre_hook(self._before_forward)
        end = callback.on_training_end

        def on_training_end() -> None:
            self.close()
            end()

        callback.on_training_end = (
            on_training_end  # so that the last commit is older than what others do then
        )

    def _begin(self) -> Any:
        """Opens the run and restores it: when all callbacks have begun."""
        run, model = self._open.enter({}), self._model
        total = model._total_timesteps
        held = SimpleNamespace(model=model, callback=self._callback, place=self.place, total=total)
        state = _LearnState(held, self._ignored)
        for name, thing in state.with_state_dict().items():
            run.add(name, _EnvironmentState(thing) if name_of_known(type(thing)) else thing)
        for name in _distributions(model.policy):
            run.ignore(name)
        run.add("learn", state, complete=True)
        self._steps = run.steps(_WITHOUT_END)
        run.restore()
        if held.total != total:
            raise RunMismatchError(
                f"{_CALL}: the run in {run.run_dir} is of {held.total} timesteps, this is learn({total}), "
                "and schedules depend on it. Use another run directory, or the number of the commit."
            )
        if run.resumed and self._on_policy and not run.finished:
            self._skipped = self.place["rollouts"]
        return run

    def collect(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Collects a rollout, or the rest of one; before it, and between its steps, are boundaries."""
        if self._steps is None:
            self._begin()
        run, place = self._open.run, self.place
        assert run is not None
        if run.finished:
            return self._nothing()
        if self._skipped:
            if not self.counts:  # the restored number could end the loop of learn
                self.counts, self._timesteps, self._model.num_timesteps = True, self._model.num_timesteps, 0
            self._skipped -= 1
            return True
        if self.counts:
            self.counts, self._model.num_timesteps = False, self._timesteps
        given = inspect.signature(method).bind(*args, **kwargs).arguments
        done, episodes = place["steps"], place["episodes"]
        self._end, self._sampled = given.get("n_rollout_steps", 0), done - 1
        self._episodes = self._model._episode_num - episodes
        try:
            self._next_step()
            with self._rest(given, done, episodes):
                result = method(**given)
        except _Stopped:
            return self._nothing()
        finally:
            self._end = 0
        place.update(rollouts=place["rollouts"] + 1, steps=0, episodes=0)
        if not self._on_policy and done:
            steps = result.episode_timesteps + done * self._model.n_envs
            result = result._replace(episode_timesteps=steps, n_episodes=result.n_episodes + episodes)
        return result

    def _nothing(self) -> Any:
        return False if self._on_policy else types.RolloutReturn(0, 0, continue_training=False)

    def _next_step(self) -> None:
        assert self._steps is not None
        with torch.enable_grad():  # as between two rollouts: the run compares the settings of the process
            if next(self._steps, None) is None:
                raise _Stopped

    @contextmanager
    def _rest(self, given: dict[str, Any], done: int, episodes: int) -> Iterator[None]:
        """Lets a rollout go on after `done` steps: it begins nothing anew, and callbacks see its counts."""
        if not done:
            yield
            return
        callback, buffer = given["callback"], given.get("rollout_buffer", SimpleNamespace())
        update = callback.update_locals
        shown = {"num_collected_steps": done, "num_collected_episodes": episodes}
        if self._on_policy:
            shown = {"n_steps": done, "n_rollout_steps": done}
            given["n_rollout_steps"] -= done
        else:
            freq = given["train_freq"]
            by_step = freq.unit == types.TrainFrequencyUnit.STEP
            given["train_freq"] = freq._replace(frequency=freq.frequency - (done if by_step else episodes))
        callback.on_rollout_start = buffer.reset = _nothing_to_do
        callback.update_locals = lambda values: update(
            {**values, **{name: values[name] + more for name, more in shown.items()}}
        )
        try:
            yield
        finally:
            del callback.on_rollout_start, callback.update_locals, buffer.reset

    def _before_forward(self, *_: Any) -> None:
        """Before an action of an on-policy rollout; a callback may call the policy, too, in between."""
        if self._on_policy and self.place["steps"] < self._model.rollout_buffer.pos < self._end:
            self._boundary(self._model.rollout_buffer.pos)

    def before_sample(self) -> None:
        """Before an action of an off-policy rollout."""
        self._sampled += 1
        if self._sampled > self.place["steps"]:
            self._boundary(self._sampled)

    def _boundary(self, steps: int) -> None:
        if self._inside:
            self.place.update(steps=steps, episodes=self._model._episode_num - self._episodes)
            self._next_step()

    @contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        """Closes the run if there is an error inside; nothing more is committed."""
        try:
            yield
        except BaseException as error:
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        self._hook.remove()
        self._model.__class__ = self._class
        vars(self._callback).pop("on_training_end", None)
        if error is None and self._steps is not None and self._open.run is not None:
            self._open.run.stop()
            next(self._steps, None)
        self._open.leave(error)


class _EnvironmentState:
    """An environment with a state_dict of its own, which says all: a run would take its attributes."""

    def __init__(self, thing: Any) -> None:
        self.state_dict, self.load_state_dict = thing.state_dict, thing.load_state_dict


def _nothing_to_do(*_: Any) -> None:
    pass


def _resumable(kind: Any, training: _Learning) -> Any:
    """Returns the class of a model for the time of `learn`; attributes would be pickled by `model.save()`."""

    class WithBoundaries(kind):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
            with training.closed_by_errors():
                return training.collect(super().collect_rollouts, *args, **kwargs)

        def _sample_action(self, *args: Any, **kwargs: Any) -> Any:
            training.before_sample()
            return super()._sample_action(*args, **kwargs)

        def train(self, *args: Any, **kwargs: Any) -> None:
            if not training.counts:
                with training.closed_by_errors():
                    super().train(*args, **kwargs)

        def dump_logs(self, *args: Any, **kwargs: Any) -> None:
            if not training.counts:
                super().dump_logs(*args, **kwargs)

        def _update_current_progress_remaining(self, *args: Any) -> None:
            if not training.counts:
                super()._update_current_progress_remaining(*args)

    for name in ("__module__", "__name__", "__qualname__"):
        setattr(WithBoundaries, name, getattr(kind, name))
    return WithBoundaries


class _LearnState:
    """All attributes of the model, its environments and its callbacks, by path."""

    def __init__(self, held: SimpleNamespace, ignored: list[str]) -> None:
        self._held, self.target = held, held.model
        try:
            self._attributes = Attributes(held, (), _CALL, ignored, _is_state)
        except InvalidArgumentError as error:
            error.add_note(
                "Here that is Resumable(..., ignore=[...]). Or give the class of an environment or callback "
                "methods state_dict and load_state_dict: they are then used instead."
            )
            raise

    def with_state_dict(self) -> dict[str, Any]:
        """Returns the policy, the optimizers, and whatever else has a state_dict, by names for the run."""
        found = self._attributes._parts().with_state_dict
        policy = self._held.model.policy
        inside = {id(module) for module in policy.modules()}
        named = {"policy": policy}
        for path, module in policy.named_modules():
            for name, item in vars(module).items():
                if isinstance(item, torch.optim.Optimizer):
                    named[f"{path}.{name}".removeprefix(".")] = item
        known = inside | set(map(id, named.values()))
        named |= {path.removeprefix("model."): one for path, one in found.items() if id(one) not in known}
        objects = {re.sub(r"\W+", "_", path).strip("_"): one for path, one in named.items()}
        self._attributes.saved_besides = frozenset(inside | set(map(id, objects.values())))
        return objects

    def state_dict(self) -> dict[str, Any]:
        """Returns it, without clocks, and of a replay buffer the rows that were written."""
        state = self._attributes.state_dict()
        values, rows = state["values"], self._rows()
        for path, value in values.items():
            if path.endswith(".episode_times"):
                values[path] = [0.0] * len(value)
            elif path == "model.ep_info_buffer":
                values[path] = deque(({**one, "t": 0.0} for one in value), value.maxlen)
            elif path.startswith(_REPLAY) and isinstance(value, np.ndarray) and value.shape[:1] == (rows[1],):
                values[path] = value[: rows[0]]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""
        values, (_, size) = dict(state["values"]), self._rows()
        for path, value in values.items():
            is_rows = path.startswith(_REPLAY) and isinstance(value, np.ndarray) and value.ndim
            if is_rows and len(value) < size:
                values[path] = np.zeros((size, *value.shape[1:]), value.dtype)
                values[path][: len(value)] = value
        self._attributes.load_state_dict({**state, "values": values})

    def _rows(self) -> tuple[int, int]:
        """Returns how many rows of the replay buffer were written, and how many it has."""
        buffer = getattr(self._held.model, "replay_buffer", None)
        if buffer is None:
            return 0, 0
        size = buffer.buffer_size
        return size if buffer.full else min(buffer.pos + 1, size), size


_LIBRARY = "stable_baselines3.", __name__
_REPLAY = "model.replay_buffer."


def _is_state(owner: Any, name: str, item: Any) -> bool:
    kinds = [kind for kind in type(owner).__mro__ if kind.__module__.startswith(_LIBRARY)]
    if any(kind.__name__ == "Logger" for kind in kinds):
        return name in {"name_to_value", "name_to_count"} and is_plain(item)
    is_left_out = any(name in _NO_STATE.get(kind.__name__, ()) for kind in kinds)
    return not is_left_out and is_state_of_environment(owner, name, item)


def _distributions(policy: Any) -> list[str]:
    """Returns the paths of the distributions of actions, which each call of the policy makes anew."""
    kind = distributions.Distribution
    held = ((path, *one) for path, module in policy.named_modules() for one in vars(module).items())
    found = [f"policy.{path}.{name}" for path, name, item in held if isinstance(item, kind)]
    return [path.replace("..", ".") for path in found]
