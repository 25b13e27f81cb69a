"""The teacher of a mean-teacher training is not given to Run: a resumed run has the untrained copy again.
component: locals:teacher
check: kill
"""

import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(12)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(11)
x = torch.randn(80, 8, generator=fixed)
y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)

student = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.2)

with samebits.Run("runs/teacher_missing", student=student, optimizer=optimizer) as run:
    for step, (inputs, labels) in run.steps(loader, epochs=3):
        out = student(inputs + 0.1 * torch.randn(inputs.shape))
        target = teacher(inputs + 0.1 * torch.randn(inputs.shape)).softmax(1)
        loss = nn.functional.cross_entropy(out, labels) + nn.functional.mse_loss(out.softmax(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast, 0.1)
        run.log(loss=loss)
        if step.ends_epoch:
            with torch.no_grad():
                print(f"epoch {step.epoch} teacher {nn.functional.cross_entropy(teacher(x), y).item():.6f}")
