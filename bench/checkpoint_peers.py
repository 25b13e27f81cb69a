"""What bench/checkpoint.py compares with: the same task, saved by the frameworks that are in common use.

    python bench/checkpoint_peers.py lightning 128 10 600 1 FOLDER      # peer, h, save every, steps, threads; one process

Each peer saves with what it has for it (Lightning: `ModelCheckpoint`, Transformers: `save_steps`, Keras on torch:
`BackupAndRestore`) and, apart from that, does as little as its options allow: no logs, bars, clipping, validation. None of
them fsyncs. The clock runs from the end of one step to the end of another, in the training thread, so that start-up and
the first steps are not in it.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

PEERS = {"lightning": ("lightning",), "hf": ("transformers", "accelerate"), "keras": ("keras",)}
BATCH, BATCHES, WARM = 32, 45, 30
RATE, DROPPED = 2e-3, 0.3


class Task:
    """Model, optimizer and batches of every row."""

    def __init__(self, hidden: int, device: str = "cpu") -> None:
        torch.manual_seed(7)
        self.device = torch.device(device)
        self.model = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(DROPPED), nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(DROPPED),
            nn.Linear(hidden, 10),
        ).to(device)  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE)
        inputs, targets = torch.randn(BATCHES * BATCH, 64), torch.randint(0, 10, (BATCHES * BATCH,))
        self.data = torch.utils.data.TensorDataset(inputs, targets)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(inputs.to(self.device)), targets.to(self.device))


def clocks() -> tuple[float, float]:
    """Wall clock and processor time of this thread, in milliseconds."""
    return time.perf_counter() * 1e3, time.thread_time() * 1e3


class Marks:
    """Reads the clocks at the ends of the steps between which is measured."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.saves = steps, 0, 0
        self.taken: list[tuple[float, float, int]] = []

    @property
    def last(self) -> int:
        return WARM + self.steps

    def step_ended(self) -> None:
        self.done += 1
        if self.done in (WARM, self.last):
            self.taken.append((*clocks(), self.saves))

    def saved(self) -> None:
        self.saves += 1

    def result(self) -> tuple[float, float, int]:
        """Milliseconds per step by both clocks, and saves made."""
        began, ended = self.taken
        return (ended[0] - began[0]) / self.steps, (ended[1] - began[1]) / self.steps, ended[2] - began[2]


def lightning(task: Task, every: int, marks: Marks, folder: Path) -> None:
    import lightning as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return task.loss(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer

    class Clock(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            marks.step_ended()

        def on_save_checkpoint(self, *_: Any) -> None:
            marks.saved()

    saving = ModelCheckpoint(folder, "last", every_n_train_steps=every, enable_version_counter=False)
    trainer = pl.Trainer(
        max_steps=marks.last, max_epochs=-1, callbacks=[Clock(), *([saving] if every else [])],
        enable_checkpointing=bool(every), logger=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", devices=1, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(task.data, BATCH, shuffle=True))


def hf(task: Task, every: int, marks: Marks, folder: Path) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": task.loss(inputs, labels)}

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.step_ended()

        def on_save(self, *_: Any, **__: Any) -> None:
            marks.saved()

    options = TrainingArguments(
        str(folder), per_device_train_batch_size=BATCH, max_steps=marks.last, lr_scheduler_type="constant",
        max_grad_norm=0.0, save_strategy="steps" if every else "no", save_steps=every or 500, save_total_limit=2,
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    rows = [{"inputs": inputs, "labels": int(label)} for inputs, label in task.data]
    optimizers = (task.optimizer, None)
    Trainer(Module(), options, train_dataset=rows, callbacks=[Clock()], optimizers=optimizers).train()


def keras(task: Task, every: int, marks: Marks, folder: Path) -> None:
    import keras
    from keras import layers

    class Model(keras.Sequential):
        def save_weights(self, *arguments: Any, **named: Any) -> None:
            super().save_weights(*arguments, **named)
            marks.saved()

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marks.step_ended()

    hidden = task.model[0].out_features
    model = Model(
        [keras.Input((64,)), layers.Dense(hidden, "relu"), layers.Dropout(DROPPED), layers.Dense(hidden, "relu"),
         layers.Dropout(DROPPED), layers.Dense(10)]
    )  # fmt: skip
    model.compile(keras.optimizers.Adam(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [Clock()]
    if every:
        callbacks.append(keras.callbacks.BackupAndRestore(str(folder), save_freq=every))
    inputs, targets = (tensor.numpy() for tensor in task.data.tensors)
    epochs = -(-marks.last // BATCHES)
    model.fit(inputs, targets, batch_size=BATCH, epochs=epochs, shuffle=True, callbacks=callbacks, verbose=0)


def missing(peer: str) -> str:
    """The first package of a peer that is not installed, or nothing."""
    return next((name for name in PEERS[peer] if importlib.util.find_spec(name) is None), "")


def row(peer: str, hidden: int, folder: Path, every: int) -> Callable[[int], tuple[float, float, int]]:
    """Runs so many steps of a peer in a process of its own: milliseconds per step by both clocks, and saves made."""

    def block(steps: int) -> tuple[float, float, int]:
        quiet = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "KERAS_BACKEND": "torch",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        arguments = [str(value) for value in (peer, hidden, every, steps, torch.get_num_threads(), folder)]
        shutil.rmtree(folder, ignore_errors=True)  # Keras would resume
        done = subprocess.run(
            [sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=600,
            env=os.environ | quiet | {"KERAS_HOME": str(folder / "keras")},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
        wall, processor, saves = json.loads(done.stdout.strip().splitlines()[-1])
        return wall, processor, saves

    return block


def main() -> None:
    """One measurement, printed as JSON."""
    peer, folder = sys.argv[1], Path(sys.argv[6])
    hidden, every, steps, threads = (int(argument) for argument in sys.argv[2:6])
    torch.set_num_threads(threads)
    marks = Marks(steps)
    {"lightning": lightning, "hf": hf, "keras": keras}[peer](Task(hidden), every, marks, folder)
    print(json.dumps(marks.result()))


if __name__ == "__main__":
    main()
