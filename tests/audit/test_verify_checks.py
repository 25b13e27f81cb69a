"""`samebits verify` on small real trainings: what is sound passes, what is broken fails and is named."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pytest
import torch

from samebits.audit._verify.check_process import CheckEnvironment, busy_processes
from waiting import wait_until

pytestmark = pytest.mark.timeout(900)

HEAD = """
import os, sys, time
import torch
import samebits
from torch.utils.data import TensorDataset
"""

SOUND = (
    HEAD
    + """
samebits.set_random_seed(3)
samebits.enable_op_determinism()
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(40, 6)
loader = samebits.data.DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
stateful = {"model": model, "optimizer": optimizer}
total = 0.0
with samebits.Run("run", **stateful) as run:
    for step, (a, b) in run.steps(loader, epochs=3):
        loss = torch.nn.functional.mse_loss(model(a + 0.1 * torch.randn_like(a)), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            model.eval()
            with torch.no_grad():
                run.state.best = min(run.state.get("best", 1e9), float((model(x) - x.sum(1, keepdim=True)).abs().mean()))
            model.train()
"""
)

MOMENTUM_FORGOTTEN = SOUND.replace(', "optimizer": optimizer}', "}")

PLAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(8, 6)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
UNSEEDED = PLAIN.replace("torch.manual_seed(0)", "")
SET_ORDER = PLAIN.replace("lr=0.05", "lr=0.01 * len(next(iter({'a', 'bbbb'})))")


@pytest.fixture
def temporary():
    """A folder with a path short enough for TMPDIR."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


def verify(folder, source, *options, args=()):
    """(exit status, standard output, standard error, JSON or None) of `samebits verify` on a script of that source."""
    script, out = folder / "train.py", folder / "out.json"
    script.write_text(source)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--json",
        str(out),
        *options,
        "train.py",
        *args,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=800)
    report = json.loads(out.read_text()) if out.exists() else None
    return done.returncode, done.stdout, done.stderr, report


def row(report, check):
    """The row of that name, by how it begins."""
    return next(row for row in report["rows"] if row["check"].startswith(check))


@pytest.mark.slow
def test_a_sound_script_passes_every_row_and_leaves_nothing_behind(tmp_path, temporary, monkeypatch):
    """All rows of a `Run` cut by `--steps 8` are equal, an epoch's end among the steps; no file or process stays."""
    monkeypatch.setenv("TMPDIR", temporary)
    status, table, _, report = verify(tmp_path, SOUND, "--seed", "5", "--steps", "8")
    assert status == 0, table
    assert [found["equal"] for found in report["rows"]] == [True] * 10
    assert all(found["steps_compared"] == 8 for found in report["rows"])
    assert "step 3" in row(report, "killed at an epoch")["varied"]
    assert report["final"] in table and " ".join(report["verdict"].split()) in " ".join(table.split())
    assert report["verdict"] == (
        "VERIFIED: the same bits in all 8 steps of a short run (--steps 8), run again, beside busy processes, killed and resumed in 3 ways and with 0, 1 and 3 loader "
        "workers. Not proven: number of threads (measured, not promised)."
    )
    assert len(report["proven"]) == 8
    told = "kills within the first 8 of about 15 steps: what changes later is not tried"
    assert (report["planned_steps"], report["notes"]) == (15, [told]) and f"note: {told}\n" in table
    assert sorted(os.listdir(tmp_path)) == ["out.json", "train.py"]
    assert os.listdir(temporary) == []


@pytest.mark.slow
def test_momentum_that_is_not_saved_fails_the_kill_rows_and_is_named(tmp_path):
    """Exit status 1; the plain repeat is equal, and the verdict names the optimizer and the cure."""
    status, _, _, report = verify(
        tmp_path, MOMENTUM_FORGOTTEN, "--checks", "kill-mid-epoch", "--seed", "5", "--steps", "8"
    )
    assert status == 1
    assert row(report, "run again")["equal"] is True
    found = row(report, "killed mid-epoch")["difference"]
    assert found["component"] == "optimizer"
    assert "Outside of verify it is an error: " in report["verdict"]
    assert 'run.add("optimizer", optimizer)' in report["verdict"]


ENTROPY = SOUND.replace(
    "model(a + 0.1 * torch.randn_like(a))", "model(a + a.new_tensor(list(os.urandom(6))))"
)


@pytest.mark.slow
def test_the_models_inputs_are_named_before_the_loss(tmp_path):
    """Equal batches to which the body adds another number each time: the inputs are named first, and a cure is given."""
    status, _, _, report = verify(tmp_path, ENTROPY, "--checks", "run-again", "--steps", "4")
    assert status == 1
    found = row(report, "run again")["difference"]
    assert (found["component"], found["paths"]) == ("inputs", ["0"])
    assert "the model's inputs (0) differ, then loss" in found["sentence"]
    assert "must not depend on the clock, entropy" in report["verdict"]
    behind = SOUND.replace(
        "randn_like(a)), b)", "randn_like(a)), b) * (1 + int.from_bytes(os.urandom(4), 'big') / 2**32)"
    )
    _, _, _, report = verify(tmp_path, behind, "--checks", "run-again", "--steps", "4")
    assert row(report, "run again")["difference"]["component"] == "loss"  # the control: the inputs are equal


EVERY_MACHINE = SOUND.replace("enable_op_determinism()", "enable_op_determinism(across='machines')")
# NumPy's tangent has other code with AVX-512, by the CPU's features alone; its product has it by the CPU's vendor, too.
BY_NUMPY = EVERY_MACHINE.replace(
    "x = torch.randn(40, 6)",
    "import numpy as np\nx = torch.from_numpy(np.tan(np.random.default_rng(0).random((40, 6), np.float32)))",
)


@pytest.mark.slow
def test_the_row_of_another_cpu_is_equal_or_names_what_is_not(tmp_path):
    """A script across machines passes on a played CPU without AVX-512; with NumPy's tangent in its data, the
    row names the step.
    """
    options = ("--checks", "threads,cpu", "--steps", "6")
    status, table, _, report = verify(tmp_path, EVERY_MACHINE, *options)
    assert status == 0, report["verdict"]
    assert row(report, "a CPU with AVX2")["equal"] is True
    wide = "avx512f" in Path("/proc/cpuinfo").read_text()
    assert ("little was varied" in row(report, "a CPU with AVX2")["note"]) is not wide
    assert row(report, "3 threads")["equal"] is True
    assert "as on a CPU with AVX2" in " ".join(report["verdict"].split())
    assert "a CPU with AVX2" in table
    status, _, _, report = verify(tmp_path, BY_NUMPY, *options)
    assert row(report, "3 threads")["equal"] is True
    if wide:
        assert status == 1
        assert row(report, "a CPU with AVX2")["difference"]["component"] == "locals"  # `x`, which NumPy made


@pytest.mark.slow
def test_a_script_without_run_gets_the_rows_that_apply(tmp_path):
    """Kill rows say why they do not apply, and do not decide; asked for alone, they prove nothing."""
    status, _, _, report = verify(tmp_path, PLAIN, "--checks", "run-again,kill", "--steps", "6")
    assert status == 0, report["verdict"]
    assert report["verdict"] == (
        "REPRODUCED: the same bits in all 6 steps of a short run (--steps 6), run again. Not proven: killed and resumed "
        "(the script does not use samebits.Run); loader workers (left out by --checks); number of threads (left out by "
        "--checks)."
    )
    assert report["proven"] == ["run again"]
    assert row(report, "run again")["steps_compared"] == 6
    assert "does not use samebits.Run" in row(report, "killed mid-epoch")["note"]
    assert any("epochs were not shortened" in note for note in report["notes"])
    status, _, _, report = verify(tmp_path, PLAIN, "--checks", "kill")
    assert status == 2 and "does not use samebits.Run" in report["verdict"]
    assert not any("epochs were not shortened" in note for note in report["notes"])


def test_an_unseeded_script_fails_at_once(tmp_path):
    """Exit status 1 at the initial model; the rows that could say nothing more are not run."""
    status, _, errors, report = verify(tmp_path, UNSEEDED)
    assert status == 1
    assert row(report, "run again")["difference"]["step"] == -1
    assert "set_random_seed" in report["verdict"] and "`--run`" in report["verdict"]
    threads = row(report, "3 threads")
    assert threads["equal"] is None and "measured" not in threads["note"]


@pytest.mark.slow
def test_run_seeds_what_the_script_does_not(tmp_path):
    """The same script as `samebits run` would start it is equal; as there, its hash seed stays."""
    status, _, _, report = verify(tmp_path, UNSEEDED, "--run", "--checks", "run-again")
    again = row(report, "run again")
    assert (status, again["equal"]) == (0, True)
    assert "hash seed" not in again["varied"]


@pytest.mark.slow
def test_options_behind_the_script_are_the_scripts(tmp_path):
    """`verify --run train.py --steps 3` proves the program that was typed: of three steps; the word is warned of first."""
    source = PLAIN.replace("range(8)", "range(int(sys.argv[sys.argv.index('--steps') + 1]))").replace(
        "import torch", "import sys, torch"
    )
    status, _, errors, report = verify(
        tmp_path, source, "--run", "--steps", "6", "--checks", "run-again", args=("--steps", "3")
    )
    assert (status, report["args"]) == (0, ["--steps", "3"]), report
    assert errors.startswith("samebits: verify: --steps stands after train.py and went to the script;")
    assert row(report, "run again")["steps_compared"] == 3


@pytest.mark.slow
def test_training_by_hand_is_verified_step_by_step(tmp_path):
    """Manual SGD: as many steps as asked for are compared; unseeded, it differs before the first one."""
    by_hand = PLAIN.replace("    optimizer.step()\n", "").replace(
        "optimizer.zero_grad()", "model.zero_grad()"
    )
    by_hand += "    for p in model.parameters(): p.data.add_(p.grad, alpha=-0.05)\n"
    status, _, _, report = verify(tmp_path, by_hand, "--checks", "run-again", "--steps", "6")
    assert (status, row(report, "run again")["steps_compared"]) == (0, 6)
    unseeded = by_hand.replace("torch.manual_seed(0)", "")
    assert verify(tmp_path, unseeded, "--checks", "run-again", "--steps", "6")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_thread_rows_of_a_plain_script_are_promised_if_asked(tmp_path, asked):
    """`--run --across threads`: the rows decide; with `--run` alone they are measured; without `--run` it is
    an error.
    """
    options = ("--run", "--checks", "threads", "--steps", "3", *(["--across", "threads"] if asked else []))
    status, _, _, report = verify(tmp_path, PLAIN, *options)
    assert [found["promised"] for found in report["rows"]] == [True, asked, asked]
    if asked:
        assert (
            status == 0
            and "run again and with 1 and 3 threads. Not proven: killed and resumed (left out"
            in report["verdict"]
        ), report
        assert verify(tmp_path, PLAIN, "--across", "threads")[0] == 2


NOISY = """
import sys
import numpy as np, torch
import samebits
from torch.utils.data import DataLoader as Torchs, get_worker_info
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        own = 0 if sys.argv[1] == "draws" or get_worker_info() is None else 1 + get_worker_info().id
        return torch.full((4,), float(i)) + np.random.rand() + own, i % 2
samebits.set_random_seed(0)
samebits.enable_op_determinism()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
held = Torchs(Noisy(), batch_size=8) if sys.argv[2] == "both" else []
loader = Torchs if sys.argv[2] == "torch" else samebits.data.DataLoader
for x, y in loader(Noisy(), batch_size=8, shuffle=True):
    loss = torch.nn.functional.cross_entropy(model(x), y) + sum(float(v.sum()) for v, _ in held)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "loader", "status", "promised", "equal"),
    [
        # the global generator of the worker, or of the script
        ("draws", "torch", 0, False, [True, False, False]),
        ("draws", "samebits", 0, True, [True, True, True]),
        ("draws", "both", 0, True, [True, True, True]),  # torch's keeps its own number
        ("worker", "samebits", 1, True, [True, False, False]),
    ],
)
def test_another_number_of_workers_decides_for_loaders_of_samebits_alone(
    tmp_path, how, loader, status, promised, equal
):
    """Torch's loader gives other bits with other workers: measured, with the reason, and no verdict on the script.

    Controls: a loader of samebits decides, and fails where an element depends on the worker that loads it.
    """
    found, _, _, report = verify(tmp_path, NOISY, "--checks", "workers", args=(how, loader))
    rows = [one for one in report["rows"] if "worker" in one["check"]]
    assert found == status, report["verdict"]
    assert [one["equal"] for one in rows] == equal
    assert {one["promised"] for one in rows} == {promised}
    assert all(("measured, not promised: torch's DataLoader" in one["note"]) != promised for one in rows)
    assert ("with 0, 1 and 3 loader workers" in report["verdict"]) == (promised and not status)


SWITCHED = PLAIN.replace(
    "torch.manual_seed(0)",
    "import samebits\nsamebits.set_random_seed(0)\ntorch.set_num_threads(3)\nsamebits.enable_op_determinism(across='threads')",
)


@pytest.mark.slow
@pytest.mark.parametrize("block", [False, True])
def test_the_environment_is_that_of_the_script(tmp_path, block):
    """Its switch and its threads are in the JSON, in a `with` block too."""
    source = SWITCHED
    if block:
        head, loop = source.split("for step")
        head = head.replace("samebits.enable", "switch = samebits.enable")
        source = head + "with switch:\n    for step" + loop.replace("\n", "\n    ")
    status, _, _, report = verify(tmp_path, source, "--checks", "run-again", "--steps", "3")
    assert status == 0, report
    found = report["environment"]
    assert found["op_determinism"] == {"enabled": True, "across": "threads", "on_unimplemented": "raise"}
    assert found["threads"] == 3 and found["flags"]["cudnn_deterministic"] is True


@pytest.mark.slow
def test_a_script_without_a_switch_has_none_in_the_json(tmp_path):
    """Negative control: neither the switch nor threads of its own."""
    _, _, _, report = verify(tmp_path, PLAIN, "--checks", "run-again", "--steps", "3")
    assert report["environment"]["op_determinism"] == {"enabled": False}
    assert report["environment"]["threads"] == torch.get_num_threads()


@pytest.mark.slow
def test_json_may_have_standard_output_alone(tmp_path):
    """`--json -`: the JSON and no table; progress is on standard error."""
    (tmp_path / "train.py").write_text(PLAIN)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "run-again",
        "--json",
        "-",
        "train.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=800)
    assert (
        json.loads(done.stdout)["verdict"].startswith("REPRODUCED") and "verifying: train.py" in done.stderr
    )


def first_of_set(seed, variant):
    """Which of the two strings a set begins with in the process of that number."""
    hash_seed = CheckEnvironment.draw(seed, variant).hash_seed
    command = [sys.executable, "-c", "print(next(iter({'a', 'bbbb'})))"]
    return subprocess.check_output(command, env={"PYTHONHASHSEED": str(hash_seed)}, text=True)


@pytest.mark.slow
def test_an_order_of_a_set_is_not_blamed_on_what_a_row_varied(tmp_path):
    """The first two runs agree by chance, the third does not: still the difference is told at "run again"."""
    orders = ((seed, [first_of_set(seed, variant) for variant in range(3)]) for seed in itertools.count())
    seed = next(seed for seed, (first, again, third) in orders if first == again != third)
    status, _, _, report = verify(tmp_path, SET_ORDER, "--checks", "threads", "--seed", str(seed))
    assert status == 1
    assert report["verdict"].startswith("NOT REPRODUCIBLE: run again")
    assert "not judged" in row(report, "1 thread")["note"]


@pytest.mark.slow
def test_what_cannot_run_ends_in_one_line_and_status_2(tmp_path):
    """A missing script, one that raises, one that trains nothing, an unknown check, a folder that is not there."""
    status, _, errors, _ = verify(tmp_path, "raise ValueError('no data')")
    assert status == 2 and "ValueError: no data" in errors and "Traceback" not in errors
    log = errors.rpartition("(its output: ")[2].split(")")[0]
    with open(log) as file:
        assert "Traceback" in file.read()
    os.unlink(log)
    status, _, errors, _ = verify(tmp_path, "raise SystemExit(3)")
    assert status == 2 and "a process ended with exit code 3: (it printed nothing)" in errors
    os.unlink(errors.rpartition("(its output: ")[2].split(")")[0])
    status, _, errors, _ = verify(tmp_path, "print(1)")
    assert status == 2 and "nothing to compare" in errors
    os.unlink(errors.rpartition("(its output: ")[2].split(")")[0])
    assert verify(tmp_path, PLAIN, "--checks", "kills")[0] == 2
    command = [sys.executable, "-m", "samebits", "verify", "--no-find-op", str(tmp_path / "none.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no file" in done.stderr and "Traceback" not in done.stderr
    done = subprocess.run([*command[:-1], "."], capture_output=True, text=True)
    assert done.returncode == 2 and "is a folder" in done.stderr and "Traceback" not in done.stderr


SLOW_WITH_WORKERS = SOUND.replace("shuffle=True)", "shuffle=True, num_workers=2)").replace(
    "        run.log(loss=loss)", "        run.log(loss=loss)\n        time.sleep(0.5)"
)


def processes_in(folder):
    """The commands of all live processes whose TMPDIR lies in `folder`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if f"TMPDIR={folder}/samebits-".encode() in file.read():
                    found.append(entry)
        except OSError:
            pass
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_no_process_behind(tmp_path, temporary, number):
    """Loader workers run when the signal comes; afterwards neither they nor the scratch exist."""
    (tmp_path / "train.py").write_text(SLOW_WITH_WORKERS)
    command = [sys.executable, "-m", "samebits", "verify", "--no-find-op", "train.py"]
    environment = {**os.environ, "TMPDIR": temporary}
    parent = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: len(processes_in(temporary)) >= 3, 200)  # the script and two workers
    parent.send_signal(number)
    assert parent.wait(60) == (130 if number == signal.SIGINT else -number)
    assert wait_until(lambda: not processes_in(temporary) and not os.listdir(temporary), 60)
    assert os.listdir(tmp_path) == ["train.py"]
    assert "Loop" not in parent.communicate()[1]


METERS = (
    HEAD
    + """
class AverageMeter:
    def __init__(self): self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val; self.sum += val * n; self.count += n; self.avg = self.sum / self.count
samebits.set_random_seed(1)
x = torch.randn(96, 4)
loader = samebits.data.DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train_one_epoch(epoch):
    losses = AverageMeter()
    for step, (a, b) in epoch.steps(loader):
        loss = torch.nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.update(loss.item(), len(a))
    return losses.avg
with samebits.Run("run", model=model, optimizer=optimizer) as run:
    for epoch in run.epochs(2):
        mean = train_one_epoch(epoch)
        print(f"epoch {epoch}: {mean:.4f}")
"""
)
DECIDES = METERS.replace("loss.backward()", "(loss * (1 + losses.avg)).backward()")


@pytest.mark.slow
def test_meters_that_are_only_printed_are_no_difference(tmp_path):
    """What Run warns of as printed only is not compared, with a note; the same meter in the loss (control) is named."""
    for name, source, code in (("printed", METERS, 0), ("decides", DECIDES, 1)):
        (folder := tmp_path / name).mkdir()
        ended, out, _, report = verify(folder, source, "--checks", "kill-mid-epoch")
        assert ended == code, out
        noted = "not compared, as they are only printed: losses.count, losses.sum" in " ".join(out.split())
        assert noted == (code == 0), out
    assert "losses." in row(report, "killed")["difference"]["paths"][0]


READS = PLAIN.replace(
    "model =",
    """import numpy, helper, time
values = torch.from_numpy(numpy.load("values.npy"))
for number in range(9):
    open(f"event-{time.time()}-{number}", "w").close()
model =""",
    1,
)


@pytest.mark.slow
def test_the_json_names_what_the_bits_came_from_and_what_was_not_run(tmp_path):
    """SHA-256 of script, module and data, the packages, the date; files written elsewhere in one note; --within and --require count."""
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    numpy.save(tmp_path / "values.npy", numpy.arange(8.0))
    status, table, _, report = verify(
        tmp_path, READS, "--seed", "1", "--within", "0.1", "--require", "run-again"
    )
    assert status == 0, table
    read = ("train.py", "helper.py", "values.npy")
    assert report["files"] == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in sorted(read)
    }
    assert report["installed"]["torch"] == torch.__version__ and report["date"].startswith("20")
    assert report["environment"]["op_determinism"]["enabled"] is False
    (outside,) = [line for line in report["notes"] if "writes outside" in line]
    assert outside.count("event-") == 3 and outside.endswith("6 more") and table.count("event-") == 3
    assert {"beside busy processes", "1 thread", "3 threads"} <= report["not_run"].keys()
    assert [found["check"] for found in report["rows"] if found["steps_compared"]] == ["run again"]
    status, table, _, report = verify(tmp_path, READS, "--checks", "run-again,kill", "--require", "kill")
    assert status == report["exit"] == 2
    assert "required, and not proven: kill (the script does not use samebits.Run)" in report["verdict"]


def test_busy_processes_end_with_their_block_and_with_their_parent():
    """One process per core runs inside the block and none after it; where the parent is killed they end by themselves."""

    def running(parent):
        ends = b"\0" + str(parent).encode() + b"\0"
        return [pid for pid in os.listdir("/proc") if pid.isdecimal() and cmdline(pid).endswith(ends)]

    def cmdline(pid):
        try:
            return Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            return b""

    def comes_to(number, parent):
        deadline = time.monotonic() + 60
        while len(running(parent)) != number and time.monotonic() < deadline:
            time.sleep(0.05)
        return len(running(parent)) == number

    cores, own = len(os.sched_getaffinity(0)), os.getpid()
    with busy_processes():
        assert comes_to(cores, own)
    assert not running(own)
    code = "from samebits.audit._verify.check_process import *\nwith busy_processes():\n    input()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert comes_to(cores, parent.pid)
    parent.kill()
    parent.wait()
    assert comes_to(0, parent.pid)
