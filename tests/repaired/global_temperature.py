"""The temperature is computed from the step number."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def distillation_loss(student_out, teacher_out, number):
    temperature = max(1.0, 4.0 * 0.95 ** (number + 1))
    target = (teacher_out / temperature).softmax(1)
    return nn.functional.cross_entropy(student_out / temperature, target) * temperature**2


def main():
    samebits.set_random_seed(18)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(17)
    x = torch.randn(80, 8, generator=fixed)
    teacher_out = 3 * x @ torch.randn(8, 4, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x, teacher_out), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    with samebits.Run("runs/global_temperature", model=model, optimizer=optimizer) as run:
        for step, (inputs, targets) in run.steps(loader, epochs=3):
            loss = distillation_loss(model(inputs), targets, step.number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
