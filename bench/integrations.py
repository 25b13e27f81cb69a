"""What an adapter costs per step: the same program with the library alone and with our one line, at the default cadence.

    make bench-integrations
    python bench/integrations.py [--rounds 3] [--steps 600] [--only lightning,keras,...] [--folder runs/bench-integrations]

The two are processes of one thread that take turns: after WARM steps each runs TURN steps while the other waits, so that
what else the machine does meets both. Its time is that of all steps after the first ones, commits included: processor
time of the training thread, and wall time. The clock by which commits are due (`time.perf_counter`)
is that processor time, so that there are as many as on a machine with nothing else to do. glibc keeps the memory of both:
else each step of the program alone maps its activations anew, which a run ends as a side effect (10% of these steps).

Printed are medians over the rounds: the time of the commits as a share of all, processor time in the training thread and
bytes of one of them, and of one call of what the library has for it (SAVES), which is in no step. Where the ratio of
processor time is above GOAL, the line says so.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOAL = 1.03
CLOCKS = ("thread", "wall")
WARM, TURN, BATCH, BATCHES = 60, 20, 64, 100
PACKAGES = {
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "keras": "keras",
    "ignite": "ignite",
    "sb3 SAC": "stable_baselines3",
    "sb3 PPO": "stable_baselines3",
}
SAVES = {
    "lightning": "save_checkpoint",
    "transformers": "a save of save_strategy",
    "accelerate": "save_state",
    "keras": "model.save",
    "ignite": "Checkpoint, DiskSaver",
    "sb3 SAC": "model.save, save_replay_buffer",
    "sb3 PPO": "model.save",
}


class Marks:
    """The time of the steps, in turns with another process."""

    def __init__(self, steps: int, folder: Path, give: int, take: int) -> None:
        self.warm = min(WARM, steps)
        self.last, self.folder = self.warm + steps, folder
        self._give, self._take = give, take
        """The pipes by which the turn is given, and taken."""
        self.done = 0
        self._began = (0.0, 0.0)
        self.times = [0.0, 0.0]
        """Those of `clocks`, in all steps."""
        self.save_s = 0.0
        self.save: Callable[[], Any] | None = None
        """Makes the library's own checkpoint in `folder`."""

    def step_ended(self) -> None:
        self.done += 1
        if self.done < self.warm or self.done > self.last:
            return
        if self.done > self.warm and (self.done - self.warm) % TURN and self.done < self.last:
            return
        if self.done > self.warm:
            ended = clocks()
            self.times = [
                one + end - begin for one, begin, end in zip(self.times, self._began, ended, strict=True)
            ]
            with contextlib.suppress(BrokenPipeError):  # the other has ended
                os.write(self._give, b"1")
        os.read(self._take, 1)  # waits for the turn, or for the other's end
        self._began = clocks()
        if self.done == self.last and self.save is not None:
            self.save()
            self.save_s = time.thread_time() - self._began[0]


now = time.perf_counter


def clocks() -> tuple[float, float]:
    """Returns processor time of the training thread, and wall time."""
    return time.thread_time(), now()


def network() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10)),
    )  # fmt: skip


def images() -> Any:
    import torch

    rows = BATCHES * BATCH
    return torch.utils.data.TensorDataset(torch.randn(rows, 1, 16, 16), torch.randint(0, 10, (rows,)))


def loader() -> Any:
    import torch

    return torch.utils.data.DataLoader(images(), BATCH, shuffle=True)


def lightning(marks: Marks, run_dir: Path | None) -> None:
    import lightning as pl
    import torch

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, _: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 0.001)

    class Clock(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            marks.step_ended()

    callbacks = [Clock()]
    if run_dir is not None:
        from samebits.integrations.lightning import Resumable

        callbacks.append(Resumable(run_dir, ignore=["marks"]))
    trainer = pl.Trainer(
        max_epochs=-(-marks.last // BATCHES), max_steps=marks.last, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1,
        default_root_dir=marks.folder,
    )  # fmt: skip
    if run_dir is None:
        marks.save = lambda: trainer.save_checkpoint(marks.folder / "save.ckpt")
    trainer.fit(Module(), loader())


def transformers(marks: Marks, run_dir: Path | None) -> None:
    import torch
    import transformers as hf

    class Text(torch.utils.data.Dataset):
        rows = torch.randint(0, 256, (BATCHES * 8, 64))

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": self.rows[index], "labels": self.rows[index]}

    class Clock(hf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            marks.step_ended()
            control.should_save = marks.done == marks.last and run_dir is None

        def on_save(self, *_: Any, **__: Any) -> None:
            marks.save_s = time.thread_time() - marks._began[0]

    config = {"vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**config, bos_token_id=0, eos_token_id=0))
    options = hf.TrainingArguments(
        str(marks.folder / "save"), per_device_train_batch_size=8, max_steps=marks.last, learning_rate=1e-3,
        warmup_steps=20, lr_scheduler_type="cosine", save_strategy="no", logging_steps=50, report_to=[], disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    given = {"train_dataset": Text(), "callbacks": [Clock()]}
    if run_dir is None:
        trainer = hf.Trainer(model, options, **given)
    else:
        from samebits.integrations.transformers import Trainer

        trainer = Trainer(model, options, **given, run_dir=run_dir, run_options={"ignore": ["marks"]})
    trainer.remove_callback(hf.PrinterCallback)
    trainer.train()


def accelerate(marks: Marks, run_dir: Path | None) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=marks.last)
    model, optimizer, train, scheduler = accelerator.prepare(model, optimizer, loader(), scheduler)
    epochs = -(-marks.last // BATCHES)

    def update(x: Any, y: Any) -> None:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        marks.step_ended()

    if run_dir is None:
        marks.save = lambda: accelerator.save_state(str(marks.folder / "save"))
        for _ in range(epochs):
            for x, y in train:
                update(x, y)
        return
    import samebits

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "accelerator": accelerator}
    with samebits.Run(run_dir, ignore=["marks"], **objects) as run:
        for _, (x, y) in run.steps(train, epochs=epochs):
            update(x, y)


def keras(marks: Marks, run_dir: Path | None) -> None:
    import keras
    from keras import layers

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marks.step_ended()

    conv = {"padding": "same", "data_format": "channels_first"}
    model = keras.Sequential(
        [
            *(keras.Input((1, 16, 16)), layers.Conv2D(16, 3, **conv), layers.BatchNormalization(axis=1)),
            *(layers.ReLU(), layers.Conv2D(32, 3, activation="relu", **conv)),
            *(layers.MaxPooling2D(2, data_format="channels_first"), layers.Flatten(), layers.Dropout(0.2)),
            *(layers.Dense(128, activation="relu"), layers.Dense(10)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    callbacks = [Clock()]
    if run_dir is None:
        marks.save = lambda: model.save(marks.folder / "save.keras")
    else:
        from samebits.integrations.keras import Resumable

        callbacks.append(Resumable(run_dir, ignore=["marks"]))
    model.fit(loader(), epochs=-(-marks.last // BATCHES), verbose=0, callbacks=callbacks)


def ignite(marks: Marks, run_dir: Path | None) -> None:
    import torch
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver
    from ignite.metrics import RunningAverage

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)

    def update(engine: Any, batch: Any) -> float:
        model.train()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda _: marks.step_ended())
    if run_dir is None:
        objects = {"trainer": trainer, "model": model, "optimizer": optimizer}
        save = Checkpoint(objects, DiskSaver(str(marks.folder / "save"), create_dir=True))
        marks.save = lambda: save(trainer)
    else:
        from samebits.integrations.ignite import resumable

        resumable(trainer, run_dir, ignore=["marks"])
    trainer.run(loader(), max_epochs=-(-marks.last // BATCHES))


def sac(marks: Marks, run_dir: Path | None) -> None:
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=20, buffer_size=10_000, seed=1)
    learn(model, marks, run_dir)


def ppo(marks: Marks, run_dir: Path | None) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    learn(PPO("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=1), n_steps=128, seed=1), marks, run_dir)


def learn(model: Any, marks: Marks, run_dir: Path | None) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            marks.step_ended()
            return True

    def save() -> None:
        model.save(marks.folder / "save.zip")
        if hasattr(model, "save_replay_buffer"):
            model.save_replay_buffer(marks.folder / "save.pkl")

    callbacks = [Clock()]
    if run_dir is None:
        marks.save = save
    else:
        from samebits.integrations.stable_baselines3 import Resumable

        callbacks.append(Resumable(run_dir, ignore=["marks"]))
    model.learn(marks.last * model.n_envs, callback=callbacks)


PROGRAMS = {
    **{f.__name__: f for f in (lightning, transformers, accelerate, keras, ignite)},
    "sb3 SAC": sac,
    "sb3 PPO": ppo,
}


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def commits_timed(marks: Marks) -> list[tuple[int, float]]:
    """Fills a list with the steps before each commit, and its milliseconds of processor time."""
    from samebits.train._boundary_commits import CommitPolicy

    took: list[tuple[int, float]] = []
    commit = CommitPolicy._commit

    def timed(self: Any, *args: Any, **kwargs: Any) -> None:
        began = time.thread_time()
        commit(self, *args, **kwargs)
        took.append((marks.done, (time.thread_time() - began) * 1e3))

    CommitPolicy._commit = timed
    return took


def one(name: str, steps: int, folder: Path, kind: str, give: int, take: int) -> dict[str, Any]:
    """Runs a program once: milliseconds per step, and those of commits or of the library's own save."""
    time.perf_counter = time.thread_time
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    marks, ours = Marks(steps, folder, give, take), kind == "ours"
    took = commits_timed(marks) if ours else []
    PROGRAMS[name](marks, folder / "run" if ours else None)
    found = dict(zip(CLOCKS, [one / steps * 1e3 for one in marks.times], strict=True))
    if not ours:
        return found | {"save": marks.save_s * 1e3, "bytes": size(folder)}
    newest = max((path for path in (folder / "run").iterdir() if path.is_dir()), key=lambda path: path.name)
    inside = [ms for done, ms in took if marks.warm <= done < marks.last]
    found |= {"commits": len(inside), "share": sum(inside) / steps / found["thread"]}
    return found | {"save": statistics.median(inside or [took[-1][1]]), "bytes": size(newest)}


def pair(name: str, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Runs both programs, in turns."""
    shutil.rmtree(folder, ignore_errors=True)
    quiet = {
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 30)),
    }
    first, second = os.pipe(), os.pipe()
    os.write(first[1], b"1")
    processes = []
    for kind, give, take in (("plain", second[1], first[0]), ("ours", first[1], second[0])):
        (folder / kind).mkdir(parents=True)
        command = [sys.executable, __file__, "--one", name, kind, str(give), str(take)]
        command += ["--steps", str(steps), "--folder", str(folder / kind)]
        output = (folder / f"{kind}.txt").open("w")
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | quiet, pass_fds=(give, take)
        )
        processes.append((kind, process))
    for end in (*first, *second):
        os.close(end)
    found = []
    for kind, process in processes:
        process.wait()
        said = (folder / f"{kind}.txt").read_text(errors="replace")
        if process.returncode:
            raise SystemExit(f"{name}, {kind}: exit status {process.returncode}\n{said[-4000:]}")
        found.append(json.loads(next(line for line in said.splitlines() if line.startswith('{"thread"'))))
    return found


def row(name: str, rounds: int, steps: int, folder: Path) -> str:
    """Measures a library; returns its line of the table."""
    pairs = [pair(name, steps, folder) for _ in range(rounds)]
    plain, ours = (
        {key: statistics.median(one[key] for one in same) for key in same[0]}
        for same in zip(*pairs, strict=True)
    )
    ratios = [statistics.median(b[key] / a[key] for a, b in pairs) for key in CLOCKS]
    saves = [f"{one['save']:8.1f} ms {one['bytes'] / 1e6:8.3f} MB" for one in (ours, plain)]
    return (
        f"{name:13}{plain['thread']:8.3f} ms {ours['thread']:8.3f} ms {' '.join(f'{one:7.3f}' for one in ratios)}"
        f"{ours['commits']:8.0f} {ours['share']:6.1%} {saves[0]} {saves[1]}  {SAVES[name]}{f', above {GOAL}' * (ratios[0] > GOAL)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="measured in each round, after the first ones")
    parser.add_argument("--only", default=",".join(PACKAGES), help="libraries, by comma")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-integrations"))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, kind, give, take = options.one
        print("\n" + json.dumps(one(name, options.steps, options.folder, kind, int(give), int(take))))
        return
    if unknown := set(options.only.split(",")) - PACKAGES.keys():
        parser.error(f"--only takes {','.join(PACKAGES)}, not {','.join(sorted(unknown))}")
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {options.rounds} rounds of {options.steps} steps"
    )
    print(
        "             a step: alone        ours   ratio    wall commits  share             commit               own save"
    )
    for name in options.only.split(","):
        if importlib.util.find_spec(PACKAGES[name]) is None:
            print(f"{name:13}not installed", flush=True)
        else:
            print(row(name, options.rounds, options.steps, options.folder), flush=True)
    shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
