"""CartPole with Stable-Baselines3: PPO on two normalized environments, a schedule, evaluation, checkpoints.

python examples/integrations/train_stable_baselines3.py                    # start it again after a kill and it goes on
samebits verify examples/integrations/train_stable_baselines3.py           # prove that it ends with the same bits
"""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from samebits.integrations.stable_baselines3 import Resumable


def main():
    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=2))
    val = VecNormalize(make_vec_env("CartPole-v1", 1, seed=3), training=False, norm_reward=False)
    model = PPO("MlpPolicy", env, learning_rate=lambda left: 0.003 * left, n_steps=128, n_epochs=4, seed=1)
    evaluation = EvalCallback(val, eval_freq=256, n_eval_episodes=3, verbose=0)
    callbacks = [evaluation, CheckpointCallback(256, "runs/ppo-checkpoints", save_vecnormalize=True)]
    callbacks.append(Resumable("runs/ppo"))
    model.learn(2560, callback=callbacks)
    print(f"{model.num_timesteps} steps, {evaluation.last_mean_reward:.1f} is the mean reward")


if __name__ == "__main__":
    main()
