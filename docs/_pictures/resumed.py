"""A run that is killed after a step: `python docs/_pictures/resumed.py FOLDER [--kill]`.

`timeline.py` starts it twice. FOLDER/log.txt has the time, number and digest of each step.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import samebits

STEPS, SAVED, KILLED = 20, 5, 13
"""Steps, steps from one commit to the next, and the step after which the first process is killed."""
folder = Path(sys.argv[1])
samebits.set_random_seed(1)
samebits.enable_op_determinism()
inputs = torch.randn(STEPS * 8, 16)
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters())
loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
with samebits.Run(folder / "run", model=model, optimizer=optimizer, save=SAVED, keep=STEPS) as run:
    for step, (x, y) in run.steps(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)
        weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes()
        with (folder / "log.txt").open("a") as log:
            log.write(f"{time.time()} {step.number} {hashlib.sha256(weights).hexdigest()[:8]}\n")
        if "--kill" in sys.argv and step.number == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
