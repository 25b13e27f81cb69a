"""Run and Trainer in a real kernel: the stop button, a kernel that dies, state in variables of a notebook; the example."""

import os
import queue
import re
import signal
import time

import nbformat
import pytest
from jupyter_client.manager import KernelManager

import notebook_pages
from samebits._inspect import user_code

SETUP = """
import hashlib, os, signal, time
import torch
from torch import nn
import samebits
samebits.enable_op_determinism()
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(8) + index / 64, index % 2
def begin(workers=0):
    samebits.set_random_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    loader = samebits.data.DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers)
    return model, torch.optim.Adam(model.parameters()), loader
def digest():
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest()
"""
TRAIN = """
model, optimizer, loader = begin(WORKERS)
with samebits.Run("runs/NAME", model=model, optimizer=optimizer) as run:
    for step, (x, y) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        BODY
print("weights", digest())
"""


def training(name, body="pass", workers=0, loss="loss"):
    text = TRAIN.replace("WORKERS", str(workers)).replace("NAME", name).replace("BODY", body)
    return text.strip().replace("loss.backward()", f"({loss}).backward()")


class Kernel:
    """A kernel, as Jupyter starts one; `cell` returns what a cell prints, and its traceback."""

    def __init__(self, folder):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=folder)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def cell(self, code, at=None, do=None):
        """Executes a cell; when it has printed `at`, `do` is called with the kernel's manager."""
        sent, out, until = self.client.execute(code), "", time.monotonic() + 300
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self.manager.is_alive():
                    return f"{out}the kernel is dead"
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return out
            text = content.get("text", "") or content.get("data", {}).get("text/plain", "")
            out += re.sub(r"\x1b\[[0-9;]*m", "", text + "\n".join(content.get("traceback", [])))
            if do is not None and at in out:
                do(self.manager)
                do = None
        raise AssertionError(f"the cell did not end: {out}")

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A kernel with the common cell, for several tests."""
    started = Kernel(tmp_path_factory.mktemp("notebook"))
    assert started.cell(SETUP) == ""
    yield started
    started.close()


@pytest.fixture
def kernel(tmp_path):
    """Starts a kernel with the common cell; each is shut down at the end."""
    started = []

    def start():
        started.append(Kernel(tmp_path))
        assert started[-1].cell(SETUP) == ""
        return started[-1]

    yield start
    for one in started:
        one.close()


def weights(out):
    return re.search(r"weights (\w+)", out)[1]


PRINT = 'print("at", step.number); time.sleep(0.2 if step.number == 10 else 0)'


def test_the_stop_button_commits_and_the_next_execution_goes_on(one):
    """An interrupt ends the cell in one line, the same cell resumes to the weights of the undisturbed run, and the next cell can be stopped."""
    stopped = one.cell(training("stopped", PRINT), "at 10\n", lambda manager: manager.interrupt_kernel())
    ended = re.search(
        r"samebits: stopped; committed at step (\d+) in .*runs/stopped; run the cell again to resume$",
        stopped,
    )
    assert "the stop button again stops at once" in stopped
    assert "Warning" not in stopped and "Traceback" not in stopped and "weights" not in stopped
    handlers = (
        "print([signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)] == [signal.SIG_DFL] * 2)"
    )
    assert one.cell(handlers) == "True\n"  # those before the run
    sleeping = one.cell(
        "print('go', flush=True); time.sleep(100)", "go", lambda manager: manager.interrupt_kernel()
    )
    assert "KeyboardInterrupt" in sleeping
    resumed = one.cell(training("stopped"))
    assert re.search(rf"resumed .*runs/stopped at step {ended[1]}", resumed)
    assert weights(resumed) == weights(one.cell(training("whole")))
    assert "had finished" in (again := one.cell(training("stopped"))) and weights(again) == weights(resumed)


IN_GLOBALS = """
scale, factor = 1.0, 1.0
class Settings:
    factor = 1.0
def scaled(loss):
    global scale
    scale *= 0.9
    return loss * scale
def by_class(loss):
    Settings.factor *= 0.9
    return loss * Settings.factor
"""


def test_state_in_variables_of_a_notebook_is_seen_and_the_lines_can_be_pasted(one):
    """A global that a function of another cell changes, a class's attribute, and a variable of another cell: each is an
    error that names the cell; with its lines pasted the run resumes to equal weights. Without such state there is none."""
    one.cell(IN_GLOBALS)
    assert "Error" not in one.cell(training("none"))
    error = one.cell(training("global", loss="scaled(loss)"))
    assert "IncompleteStateError" in error and "scale (a global variable" in error
    place, lines = re.search(
        r"To save them, in (Cell In\[\d+\], before line \d+):\n((?:    .*\n)+)", error
    ).groups()
    assert place in error.replace(", line", ", before line")  # that of the traceback
    attribute = one.cell(training("class", loss="by_class(loss)"))
    assert "IncompleteStateError" in attribute and "factor" in attribute
    cell = one.cell(training("cell", "factor = factor * 0.9", loss="loss * factor"))
    assert 'run.state.setdefault("factor", factor)' in cell and re.search(
        r"Cell In\[\d+\], before line 3:", cell
    )
    pasted = training("pasted", PRINT, loss="scaled(loss)").replace("as run:\n", f"as run:\n{lines}")
    one.cell("scale = 1.0")
    whole = weights(one.cell(pasted.replace("runs/pasted", "runs/pasted-whole")))
    one.cell("scale = 1.0")
    stopped = one.cell(pasted, "at 10\n", lambda manager: manager.interrupt_kernel())
    assert "committed at step" in stopped
    one.cell("scale = 1.0")  # as a kernel that restarts
    assert weights(one.cell(pasted)) == whole


def test_the_file_of_a_script_is_no_cell():
    """Outside of IPython no file is a cell."""
    assert user_code.cell_of(__file__) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_that_dies_in_mid_training_resumes(kernel, number):
    """After SIGKILL, or SIGTERM, which commits and ends the kernel, a new kernel ends at the digest of the undisturbed run; with workers, too."""
    slow = "print('at', step.number); time.sleep(0.2)"
    first = kernel()
    undisturbed = weights(first.cell(training("whole")))
    died = first.cell(
        training("r", slow, workers=2), "at 10\n", lambda manager: os.kill(manager.provisioner.pid, number)
    )
    assert died.endswith("the kernel is dead")
    assert ("committed at step" in died) == (number == signal.SIGTERM)
    resumed = kernel().cell(training("r", workers=2))
    assert re.search(r"resumed .* at step \d+", resumed) and weights(resumed) == undisturbed


@pytest.mark.slow
def test_a_second_press_stops_at_once(one):
    """A second interrupt ends the cell in its step, in one line, and the next execution replays to equal weights."""

    def twice(manager):
        manager.interrupt_kernel()
        time.sleep(0.5)
        manager.interrupt_kernel()

    body = "print('at', step.number); time.sleep(0.1 if step.number < 10 else 100)"
    stopped = one.cell(training("pressed", body), "at 10\n", twice)
    assert re.search(
        r"samebits: stopped at once; (committed at step \d+|nothing was committed) in .*$", stopped
    )
    assert weights(one.cell(training("pressed"))) == weights(one.cell(training("unpressed")))


@pytest.mark.slow
def test_the_trainer_shows_one_line_that_changes_and_a_line_per_epoch(one):
    """In a notebook the bar is one display that is updated, epochs are lines of stdout, and nothing else is printed."""
    out = one.cell(
        "model, optimizer, loader = begin()\n"
        "trainer = samebits.Trainer(model, nn.CrossEntropyLoss(), optimizer)\n"
        "history = trainer.fit(loader, epochs=2)"
    )
    assert re.fullmatch(
        r"training(step \d+/16: loss [\d.]+)+epoch 1/2: .*\n(step .*)*epoch 2/2: .*\nstep 16/16: loss [\d.]+",
        out,
    ), out
    assert one.cell("trainer.fit(loader, epochs=1, verbose=2)").count("step") == 0


def test_the_stored_outputs_of_the_example_are_readable(root):
    """The notebook in examples/ stores its outputs, its cells were run in order, and none has a traceback or a path of a machine."""
    cells = [
        one for one in nbformat.read(root / "examples/notebook.ipynb", 4).cells if one.cell_type == "code"
    ]
    assert [one.execution_count for one in cells] == list(range(1, len(cells) + 1))
    outputs = str([one.outputs for one in cells])
    assert len(set(re.findall(r"weights ((?:\w{16} ?)+)", outputs))) <= 2
    assert "Traceback" not in outputs and not re.search(r"/tmp/|/root/|ipykernel_", outputs)


@pytest.mark.slow
def test_the_example_prints_what_it_stores(root, tmp_path):
    """Each cell of examples/notebook.ipynb prints in a kernel what is stored; a changed output is seen."""
    assert notebook_pages.run_notebook(root / "examples/notebook.ipynb", tmp_path) == []


@pytest.mark.slow
def test_a_stored_output_that_nothing_prints_is_seen(tmp_path):
    """Of two cells the one whose stored output is another is named."""
    cells = [nbformat.v4.new_code_cell(f"print({number})", execution_count=number) for number in (1, 2)]
    cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="1\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    (wrong,) = notebook_pages.run_notebook(tmp_path / "a.ipynb", tmp_path)
    assert wrong.startswith("In[2] prints:")
