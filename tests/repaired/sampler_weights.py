"""The weights are kept in run.state, too, and put back before the loop."""

import torch
from torch import nn
from torch.utils.data import TensorDataset, WeightedRandomSampler

import samebits


def main():
    samebits.set_random_seed(46)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(44)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    sampler = WeightedRandomSampler(torch.ones(80), 80)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/sampler_weights", model=model, optimizer=optimizer) as run:
        sampler.weights = run.state.get("weights", sampler.weights)
        for step, (inputs, labels) in run.steps(loader, epochs=4):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                with torch.no_grad():
                    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                sampler.weights = run.state.weights = losses + 0.05
                print(f"epoch {step.epoch} loss {losses.mean().item():.6f}")


if __name__ == "__main__":
    main()
