"""The number of bad checks is kept in run.state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(2)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(1)
    x = torch.randn(140, 8, generator=fixed)
    y = torch.randn(140, 1, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x[:80], y[:80]), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    nn.init.zeros_(model[-1].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/patience_local", model=model, optimizer=optimizer) as run:
        run.state.bad_checks = 0
        for step, (inputs, targets) in run.steps(loader, epochs=6):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.number % 3 == 2:
                with torch.no_grad():
                    val_loss = nn.functional.mse_loss(model(x[80:]), y[80:]).item()
                if val_loss < run.state.get("best", 1e9):
                    run.state.best = val_loss
                    run.state.bad_checks = 0
                else:
                    run.state.bad_checks += 1
                    if run.state.bad_checks == 9:
                        run.stop()
        print(f"best {run.state.best:.6f}")


if __name__ == "__main__":
    main()
