"""The dataset draws from torch's global generator, which the loader sets for each sample."""

import torch
from torch import nn

import samebits


class RandomCrops(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images = images
        self.labels = labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        top, left = torch.randint(0, 3, (2,)).tolist()
        return self.images[index, :, top : top + 6, left : left + 6], self.labels[index]


samebits.set_random_seed(34)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(32)
images = torch.rand(80, 1, 8, 8, generator=fixed)
labels = (images[:, 0, :, :4].mean((1, 2)) > images[:, 0, :, 4:].mean((1, 2))).long()
loader = samebits.data.DataLoader(RandomCrops(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with samebits.Run("runs/dataset_generator", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
