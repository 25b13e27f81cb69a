"""A program of Stable-Baselines3, as its documentation has it: `python stable_baselines3_program.py plain|resumable FOLDER`.

ALGORITHM: PPO (two normalized environments), A2C (gSDE), SAC (memory, several steps for each update), DQN, TD3 (action
noise, training by episodes); evaluation, checkpoints, early stopping.
"""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common import callbacks as cb
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from killed_programs import tick
from samebits._digest import of_value

warnings.simplefilter("ignore")


class Tick(cb.BaseCallback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self):
        tick()
        self.seen.append(float(np.sum(self.locals["rewards"])) + self.locals.get("n_steps", 0))
        return True


def made(algorithm):
    """The model, its number of timesteps, and what evaluates it."""
    net = {"net_arch": [16]}
    if algorithm == "PPO":
        env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=3))
        val = VecNormalize(make_vec_env("CartPole-v1", 1, seed=4), training=False, norm_reward=False)
        model = sb3.PPO(
            "MlpPolicy", env, 3e-3, 24, 16, 2, clip_range=lambda left: 0.2 * left, policy_kwargs=net, seed=1
        )
        return model, 200, val
    if algorithm == "A2C":
        return (
            sb3.A2C("MlpPolicy", "Pendulum-v1", n_steps=7, use_sde=True, policy_kwargs=net, seed=1),
            100,
            make_vec_env("Pendulum-v1", 1, seed=4),
        )
    if algorithm == "DQN":
        model = sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=20, batch_size=16, target_update_interval=30,
                        buffer_size=70, optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False},
                        policy_kwargs=net, seed=1)  # fmt: skip
        return model, 120, make_vec_env("CartPole-v1", 1, seed=4)
    given = {"learning_starts": 20, "batch_size": 16, "policy_kwargs": net, "seed": 1, "buffer_size": 1000}
    val = make_vec_env("Pendulum-v1", 1, seed=4)
    if algorithm == "SAC":
        return sb3.SAC("MlpPolicy", "Pendulum-v1", train_freq=5, gradient_steps=-1, **given), 100, val
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1))
    env = make_vec_env("Pendulum-v1", 1, seed=3, env_kwargs={"max_episode_steps": 15})
    return (
        sb3.TD3("MlpPolicy", env, train_freq=(1, "episode"), gradient_steps=3, action_noise=noise, **given),
        100,
        val,
    )


def main(kind, folder):
    torch.manual_seed(1)
    model, steps, val = made(os.environ.get("ALGORITHM", "PPO"))
    stop = cb.StopTrainingOnNoModelImprovement(30, 3)
    checkpoints = cb.CheckpointCallback(
        15, f"{folder}/checkpoints", save_replay_buffer=True, save_vecnormalize=True
    )
    evaluation = cb.EvalCallback(val, None, stop, 1, 20, f"{folder}/eval", f"{folder}/best", verbose=0)
    seen = Tick()
    given = [evaluation, checkpoints, seen]
    if kind == "resumable":
        from samebits.integrations.stable_baselines3 import Resumable

        model.learn(
            steps,
            callback=[evaluation, Resumable(f"{folder}/run", save=3), checkpoints, seen],
            log_interval=2,
        )
    else:
        found = sorted(
            Path(folder, "checkpoints").glob("rl_model_*_steps.zip"),
            key=lambda path: int(path.stem.split("_")[2]),
        )
        if found:
            done = found[-1].stem.split("_")[2]
            if isinstance(model.env, VecNormalize):
                env = VecNormalize.load(
                    f"{folder}/checkpoints/rl_model_vecnormalize_{done}_steps.pkl", model.env.venv
                )
            model = type(model).load(found[-1], env if isinstance(model.env, VecNormalize) else model.env)
            if getattr(model, "replay_buffer", None) is not None:
                model.load_replay_buffer(f"{folder}/checkpoints/rl_model_replay_buffer_{done}_steps.pkl")
            model.learn(steps - model.num_timesteps, callback=given, reset_num_timesteps=False)
        else:
            model.learn(steps, callback=given)
    env = model.env.unwrapped.envs[0] if hasattr(model.env, "unwrapped") else model.env.envs[0]
    optimizers = (
        [model.policy.optimizer]
        if hasattr(model.policy, "optimizer")
        else [model.actor.optimizer, model.critic.optimizer]
    )
    values = [model.policy.state_dict(), *(one.state_dict() for one in optimizers), model._last_obs, seen.seen,
              evaluation.evaluations_results, evaluation.n_calls, stop.no_improvement_evals,
              [env.unwrapped.np_random.random(), model.action_space.sample()]]  # fmt: skip
    infos = [(one["r"], one["l"]) for one in model.ep_info_buffer]
    print("FINAL", of_value(values), model.num_timesteps, model._n_updates, infos, len(seen.seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
