"""The gradients are added in the order of the parts."""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(28)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(26)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def work(inputs, labels):
        time.sleep(secrets.randbelow(6) / 1000)  # parts take different times
        return torch.autograd.grad(nn.functional.cross_entropy(model(inputs), labels), parameters)

    with ThreadPoolExecutor(4) as pool:
        with samebits.Run("runs/threads_race", model=model, optimizer=optimizer) as run:
            for step, (inputs, labels) in run.steps(loader, epochs=3):
                for parameter in parameters:
                    parameter.grad = torch.zeros_like(parameter)
                for grads in pool.map(work, inputs.split(2), labels.split(2)):
                    for parameter, grad in zip(parameters, grads):
                        parameter.grad += grad
                optimizer.step()
                if step.ends_epoch:
                    with torch.no_grad():
                        loss = nn.functional.cross_entropy(model(x), y)
                    print(f"epoch {step.epoch} loss {loss.item():.8f}")


if __name__ == "__main__":
    main()
