"""The moving average is kept in run.state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(45)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(43)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    average = {name: value.clone() for name, value in model.state_dict().items()}

    with samebits.Run("runs/own_checkpoint", model=model, optimizer=optimizer) as run:
        run.state.average = average
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            for name, value in model.state_dict().items():
                run.state.average[name].lerp_(value, 0.1)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")

        model.load_state_dict(run.state.average)
        with torch.no_grad():
            print(f"loss of the averaged weights {nn.functional.cross_entropy(model(x), y).item():.6f}")


if __name__ == "__main__":
    main()
