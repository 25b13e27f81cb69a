"""What starting costs: the command, the import, the first step of the digits run; and what one step of a `Run` costs.

    python bench/startup.py [ROUNDS] [WHEEL] [--json FILE]

Each line is a process of its own, started in turn with the one that it is compared with, ROUNDS times; medians. Wall time
has in it what else the machine does, so the processor time of the process stands beside it. Bytecode is on disk, as
after `pip install`. In an empty home no kernel is compiled yet; WHEEL is one that `make wheel` made, and is used in an
empty home, too. The plain twin of the digits run is examples/digits.py with samebits taken out: torch's loader, no
switch, no Run. The steps are timed in one process, as processor time of the training thread, in turn too.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import figures

ROUNDS = 7
EXAMPLE = pathlib.Path(__file__).parent.parent / "examples" / "digits.py"
LOGGED = "            run.log(loss=loss)\n"
STOP = "            import time as _t; print('DONE', _t.process_time(), flush=True); raise SystemExit\n"
PLAIN = (
    ("\nimport samebits\n", "\n"),
    ("samebits.set_random_seed(1)", "torch.manual_seed(1)"),
    ('    samebits.enable_op_determinism(across="machines")\n', ""),
    ("samebits.data.DataLoader", "torch.utils.data.DataLoader"),
    (
        "with samebits.Run(args.run_dir, model=model, optimizer=optimizer, scheduler=scheduler) as run:",
        "if 1:",
    ),
    ("for step, (x, y) in run.steps(loader, epochs=args.epochs):", "for x, y in loader:"),
    (LOGGED, ""),
)
STEPS = """
import statistics, sys, tempfile, time, torch, samebits
samebits.set_random_seed(1)
torch.set_num_threads(1)
clock = time.thread_time
data = torch.utils.data.TensorDataset(torch.randn(1500, 16))

def model_of(layers):
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(layers)])
    return model, torch.optim.SGD(model.parameters(), lr=0.001)

def usual(took):
    return statistics.median(took[len(took) // 3 :])  # what comes before warms up

def nothing(batch):
    pass

def training(model, optimizer):
    def body(batch):
        loss = model(batch[0]).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return body

def plain(layers, trains):
    model, optimizer = model_of(layers)
    loader, took = torch.utils.data.DataLoader(data, batch_size=1), []
    body, ended = training(model, optimizer) if trains else nothing, clock()
    for batch in loader:
        took.append(clock() - ended)
        body(batch)
        ended = clock()
    return usual(took)

def own(layers, trains):
    model, optimizer = model_of(layers)
    loader, took = samebits.data.DataLoader(data, batch_size=1), []
    body, ended = training(model, optimizer) if trains else nothing, clock()
    with tempfile.TemporaryDirectory() as folder, samebits.Run(
        folder, save="explicit", ignore=["took", "ended"], model=model, optimizer=optimizer
    ) as run:
        for _, batch in run.steps(loader):
            took.append(clock() - ended)
            body(batch)
            ended = clock()
    return usual(took)

for layers, trains in ((2, False), (400, False), (2, True)):
    found = [(plain(layers, trains), own(layers, trains)) for _ in range(5)]
    print(layers, trains, *[statistics.median(kind) * 1e3 for kind in zip(*found)])
"""


@dataclass
class Line:
    """A process to time, and what its time is compared with."""

    name: str
    words: list[str]
    goal: Callable[[float, float], str]
    """Of its time and that of the line it is compared with."""
    beside: int = 0
    ends_itself: bool = True
    """Else it counts until it says DONE."""
    is_home_empty: bool = False
    wheel: str = ""
    """A folder with the wheel's content."""

    def run(self) -> tuple[float, float]:
        """Wall and processor seconds."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        environment |= {"PYTHONPATH": self.wheel} if self.wheel else {}
        home = tempfile.TemporaryDirectory() if self.is_home_empty else nullcontext()
        with home as cache:
            return self._timed(environment | ({"SAMEBITS_CACHE_DIR": cache} if cache else {}))

    def _timed(self, environment: dict[str, str]) -> tuple[float, float]:
        before, begin = os.times(), time.perf_counter()
        with subprocess.Popen(
            self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            said = next((line for line in process.stdout if line.startswith("DONE")), "")
            wall = time.perf_counter() - begin
            error = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"{self.name}: exit status {process.returncode}\n{error}")
        if not self.ends_itself:
            return wall, float(said.split()[1])
        wall, after = time.perf_counter() - begin, os.times()
        spent = [after.children_user - before.children_user, after.children_system - before.children_system]
        return wall, sum(spent)


def alone(own: float, beside: float) -> str:
    return f"{own:7.3f} s"


def ratio(own: float, beside: float) -> str:
    return f"{own:7.3f} s, {own / beside:5.2f} times"


def beyond(own: float, beside: float) -> str:
    return f"{own:7.3f} s, {own - beside:+6.3f} s"


def lines(folder: str, wheels: list[str]) -> list[Line]:
    """The lines of the table; `wheels` are folders with the content of a wheel, one or none."""
    empty = pathlib.Path(folder, "empty.py")
    empty.write_text("")
    command = [sys.executable, "-m", "samebits"]
    code = [sys.executable, "-c"]
    plain, own = first_steps(folder)
    return [
        Line("python -c 'import torch'", [*code, "import torch"], alone),
        Line("samebits --version", [*command, "--version"], alone),
        Line("samebits --help", [*command, "--help"], alone),
        Line("import torch, samebits", [*code, "import torch, samebits"], ratio),
        Line("from samebits import Run", [*code, "from samebits import Run"], ratio),
        Line("samebits run empty.py", [*command, "run", str(empty)], beyond),
        Line("first step of digits, plain torch", plain, alone, ends_itself=False),
        Line("first step of digits", own, beyond, beside=6, ends_itself=False),
        Line("the same in an empty home", own, beyond, beside=7, ends_itself=False, is_home_empty=True),
        *(
            Line(
                "the same from the wheel",
                own,
                beyond,
                beside=7,
                ends_itself=False,
                is_home_empty=True,
                wheel=wheel,
            )
            for wheel in wheels
        ),
    ]


def first_steps(folder: str) -> list[list[str]]:
    """The commands of the digits run and its plain twin up to the end of their first step."""
    own = EXAMPLE.read_text()
    assert own.count(LOGGED) == 1
    own = plain = own.replace(LOGGED, LOGGED + STOP)
    for old, new in PLAIN:
        assert old in plain, f"{EXAMPLE} has no {old!r} any more: change its plain twin, too"
        plain = plain.replace(old, new)
    commands = []
    for name, source in (("plain", plain), ("own", own)):
        file = pathlib.Path(folder, f"{name}.py")
        file.write_text(source)
        commands.append([sys.executable, str(file), "--run-dir", f"{folder}/run"])
    return commands


COMPARED = [
    ("", ""),
    ("seconds", figures.RATIO),
    ("compared with", ""),
    ("times", figures.RATIO),
    ("seconds more", figures.RATIO),
]
BODIES = [("", ""), ("plain torch", "{:.3f} ms"), ("`Run`", "{:.3f} ms")]


def compared(line: Line, own: float, name: str, beside: float) -> list[float | str | None]:
    """A row of COMPARED."""
    if line.goal is alone:
        return [line.name, own, None, None, None]
    return [
        line.name,
        own,
        name,
        own / beside if line.goal is ratio else None,
        own - beside if line.goal is beyond else None,
    ]


def main() -> None:
    file = figures.file_asked()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        wheels = [f"{folder}/wheel"] if sys.argv[2:] else []
        for wheel in wheels:
            zipfile.ZipFile(sys.argv[2]).extractall(wheel)
        every = lines(folder, wheels)
        times: list[list[tuple[float, float]]] = [[] for _ in every]
        for number in range(rounds + 1):
            for line, found in zip(every, times, strict=True):
                took = line.run()
                if number:  # the first round fills the caches: bytecode, kernels
                    found.append(took)
    medians = [[statistics.median(kind) for kind in zip(*found, strict=True)] for found in times]
    print(f"{rounds} rounds, medians{'':17s}wall{'':22s}processor")
    for line, own in zip(every, medians, strict=True):
        shown = [line.goal(own[kind], medians[line.beside][kind]) for kind in (0, 1)]
        print(f"{line.name:34s}{shown[0]:26s}{shown[1]}")
    processes = [
        compared(line, own[1], every[line.beside].name, medians[line.beside][1])
        for line, own in zip(every, medians, strict=True)
    ]
    bodies = []
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    print("between two bodies, no commit     plain torch       Run")
    for said in done.stdout.splitlines():
        layers, trains, plain, own = said.split()
        what = f"{layers} layers, {'trained' if trains == 'True' else 'empty body'}"
        print(f"{what:34s}{float(plain):8.3f} ms {float(own):8.3f} ms")
        bodies.append([what, float(plain), float(own)])
    figures.save(file, processes=figures.table(COMPARED, processes), bodies=figures.table(BODIES, bodies))


if __name__ == "__main__":
    main()
