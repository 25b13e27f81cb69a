"""The replay memory is kept in run.state."""

import random

import torch
from torch import nn

import samebits

LENGTH = 6


def play(network, epsilon):
    """One walk on a chain; the right end pays."""
    place, walk = LENGTH // 2, []
    for _ in range(12):
        with torch.no_grad():
            best = int(network(torch.eye(LENGTH)[place]).argmax())
        action = random.randrange(2) if random.random() < epsilon else best
        following = max(place - 1, 0) if action == 0 else place + 1
        reward = 1.0 if following == LENGTH - 1 else -0.01
        walk.append((place, action, reward, following))
        if reward == 1.0:
            break
        place = following
    return walk


def main():
    samebits.set_random_seed(6)
    samebits.enable_op_determinism()
    model = nn.Sequential(nn.Linear(LENGTH, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with samebits.Run("runs/replay_buffer", model=model, optimizer=optimizer) as run:
        run.state.memory = []
        for step, episode in run.steps(range(10), epochs=4):
            run.state.memory = (run.state.memory + play(model, epsilon=0.3))[-150:]
            batch = random.choices(run.state.memory, k=16)
            places, actions, rewards, followings = (torch.tensor(column) for column in zip(*batch))
            with torch.no_grad():
                future = model(torch.eye(LENGTH)[followings]).max(1).values
            goal = rewards + 0.9 * future * (rewards < 1)
            values = model(torch.eye(LENGTH)[places]).gather(1, actions[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(values, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
