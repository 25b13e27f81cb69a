"""Hard examples are appended to a file that later steps read; after a kill it holds lines from after the commit.
component: loss
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(43)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(41)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y, torch.arange(80)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/appended_file", model=model, optimizer=optimizer) as run:
        hard_file = run.run_dir / "hard.txt"
        for step, (inputs, labels, indices) in run.steps(loader, epochs=3):
            if step.number > 0:
                hard = [int(line) for line in hard_file.read_text().split()][-5:]
                inputs, labels = torch.cat([inputs, x[hard]]), torch.cat([labels, y[hard]])
            losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
            loss = losses.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            worst = losses[: len(indices)].argmax()
            with hard_file.open("a") as file:
                file.write(f"{indices[worst].item()}\n")
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
