"""Handwritten digits on any number of processes, with the same bits.

python examples/shards.py                                    # one process
torchrun --standalone --nproc-per-node 3 examples/shards.py  # three: the same weights, also after a kill
samebits verify --world-sizes 1,2,3 examples/shards.py       # prove it
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

import samebits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--run-dir", default="runs/shards")
args = parser.parse_args()

if "RANK" in os.environ:  # torchrun has started this process
    dist.init_process_group("gloo")
samebits.set_random_seed(1)
samebits.enable_op_determinism(across="threads")
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
data, test = random_split(TensorDataset(images, torch.tensor(digits.target)), [1536, 261])
loader = samebits.data.DataLoader(data, batch_size=96, shuffle=True, num_workers=2)  # the global batch
test_loader = samebits.data.DataLoader(test, batch_size=87)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

with samebits.Run(args.run_dir, model=net, optimizer=optimizer) as run:
    for step, shards in run.steps(loader, epochs=args.epochs, shards=6):
        losses = []
        for x, y in shards:  # this rank's shards: all six in one process
            loss = F.cross_entropy(net(x), y) / step.shards
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()  # here the gradients are whole, on all ranks
        optimizer.zero_grad()
        run.log(loss=shards.sum(losses))
        if step.ends_epoch:
            net.eval()
            with torch.no_grad():
                batches = run.validate(test_loader)  # each rank every W-th batch
                right = [(net(x).argmax(1) == y).sum() for x, y in batches]
            net.train()
            run.state.accuracy = batches.sum(right) / len(test)
            if run.rank == 0:
                print(f"epoch {step.epoch}: accuracy {run.state.accuracy:.3f}", flush=True)

if run.rank == 0:
    weights = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
    print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
