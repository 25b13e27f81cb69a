"""What starting costs: the command, the import, the first step of the digits run; and one empty step of a `Run`.

    python bench/startup.py [ROUNDS]

Every line is a process of its own (the empty step: one process for both), started in turn with the process that it is
compared with, ROUNDS times; the medians are compared. Wall time has what else the machine does in it, so the processor
time of the process is given beside it. The plain twin of the digits run is made of examples/digits.py by taking samebits out.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

EXAMPLE = pathlib.Path(__file__).parent.parent / "examples" / "digits.py"
DONE = "import resource as _r; _u = _r.getrusage(_r.RUSAGE_SELF); print('DONE', _u.ru_utime + _u.ru_stime, flush=True)"
STOP = f"exec({DONE!r}); raise SystemExit"
PLAIN = (
    ("\nimport samebits\n", "\n"),
    ("samebits.set_random_seed(1)", "torch.manual_seed(1)"),
    ("    samebits.enable_op_determinism(thread_invariant=True)\n", ""),
    ("samebits.data.DataLoader", "torch.utils.data.DataLoader"),
    (
        "with samebits.Run(args.run_dir, model=model, optimizer=optimizer, scheduler=scheduler) as run:",
        "if True:",
    ),
    ("for step, (x, y) in run.steps(loader, epochs=args.epochs):", "for x, y in loader:"),
)
STEP = """
import statistics, time, torch
from samebits import Run, set_random_seed
from samebits.data import DataLoader
set_random_seed(1)

def seconds(layers, steps):
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(list(range(steps)), batch_size=1, collate_fn=tuple)
    plain, own = [], []
    for _ in loader:
        plain.append(time.thread_time())
    with tempfile.TemporaryDirectory() as folder, Run(folder, save="explicit", model=model, optimizer=optimizer) as run:
        for _ in run.steps(loader):
            own.append(time.thread_time())
    return [statistics.median(b - a for a, b in zip(t[len(t) // 2 :], t[len(t) // 2 + 1 :])) for t in (plain, own)]
"""


@dataclass
class Line:
    """A process to time; `source` is run by `python -c`, else `words` is a command."""

    name: str
    words: list[str]
    until_done: bool = False
    """Only until it says so; what it does afterwards does not count."""

    def run(self) -> tuple[float, float]:
        """Wall and processor seconds."""
        begin = time.perf_counter()
        before = os.times()
        with subprocess.Popen(
            self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            said = next((line for line in process.stdout if line.startswith("DONE")), "")
            wall = time.perf_counter() - begin
            error = process.stderr.read()
        after = os.times()
        if process.returncode:
            raise SystemExit(f"{self.name}: exit status {process.returncode}\n{error}")
        if self.until_done:
            return wall, float(said.split()[1])
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        return time.perf_counter() - begin, spent


def python(name: str, source: str) -> Line:
    return Line(name, [sys.executable, "-c", source])


def command(name: str, *words: str) -> Line:
    return Line(name, [sys.executable, "-m", "samebits", *words])


def first_steps(folder: str) -> tuple[Line, Line]:
    own = EXAMPLE.read_text()
    plain = own
    for old, new in PLAIN:
        assert old in plain, f"{EXAMPLE} has no {old!r} any more: change its plain twin, too"
        plain = plain.replace(old, new)
    lines = []
    for name, source in (("plain", plain), ("own", own)):
        file = pathlib.Path(folder, f"{name}.py")
        logged = "            run.log(loss=loss)\n"
        assert logged in source
        file.write_text(source.replace(logged, f"{logged if name == 'own' else ''}            {STOP}\n"))
        lines.append(Line(f"first digits step, {name}", [sys.executable, str(file)], until_done=True))
        lines[-1].words += ["--run-dir", f"{folder}/run"]
    return lines[0], lines[1]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        empty = pathlib.Path(folder, "empty.py")
        empty.write_text("")
        lines = [
            python("python -c 'import torch'", "import torch"),
            python("import samebits", "import samebits"),
            python("from samebits import Run", "from samebits import Run"),
            command("samebits --version", "--version"),
            command("samebits --help", "--help"),
            command("samebits run empty.py", "run", str(empty)),
            *first_steps(folder),
        ]
        print(f"{rounds} rounds, medians; wall s, processor s")
        times: dict[str, list[tuple[float, float]]] = {line.name: [] for line in lines}
        for number in range(rounds + 1):
            for line in lines:
                found = line.run()
                if number:  # the first round fills the caches
                    times[line.name].append(found)
        for name, found in times.items():
            print(name, [round(statistics.median(kind), 3) for kind in zip(*found, strict=True)])


if __name__ == "__main__":
    main()
