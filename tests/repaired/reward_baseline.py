"""The moving average is kept in run.state."""

import torch
from torch import nn

import samebits

samebits.set_random_seed(42)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(40)
contexts = torch.randn(80, 4, generator=fixed)
payoff = torch.randn(4, 3, generator=fixed)
loader = samebits.data.DataLoader(contexts, batch_size=8, shuffle=True)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)

with samebits.Run("runs/reward_baseline", policy=policy, optimizer=optimizer) as run:
    run.state.baseline = 0.0
    for step, seen in run.steps(loader, epochs=4):
        choice = torch.distributions.Categorical(logits=policy(seen))
        action = choice.sample()
        reward = (seen @ payoff).gather(1, action[:, None])[:, 0]
        loss = -(choice.log_prob(action) * (reward - run.state.baseline)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.state.baseline = 0.95 * run.state.baseline + 0.05 * reward.mean().item()
        run.log(loss=loss, reward=reward.mean())
        if step.ends_epoch:
            print(f"epoch {step.epoch} reward {reward.mean().item():.6f}")
