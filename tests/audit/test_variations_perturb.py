"""What the launcher varies or watches around a script, and that all of it is undone."""

import glob
import os
import pathlib

import pytest
import torch

import samebits
from samebits._context import CheckOverrides, process
from samebits.audit._child.kill_points import Kill
from samebits.audit._child.launch_spec import LaunchSpec, read_spec
from samebits.audit._child.variations import set_listing_order, set_loader_workers
from samebits.audit._record.opened_files import lines_outside, record_opened_files
from samebits.audit._record.record_file import RecordFile
from samebits.audit._record.recorder import Recorder, recording
from samebits.audit._record.torch_hooks import LoaderWorkers, TorchListener, torch_hooks
from samebits.errors import InvalidArgumentError


def test_listings_come_in_opposite_orders_for_neighbouring_seeds(tmp_path):
    """Every way to list a folder gives the seed's order, all of the entries, and the system's again afterwards."""
    for name in "abcd":
        (tmp_path / name).touch()
    before = os.listdir, os.scandir
    orders = []
    for seed in (6, 7):
        with set_listing_order(seed):
            listed = os.listdir(tmp_path)
            with os.scandir(tmp_path) as entries:
                assert [entry.name for entry in entries] == listed
            assert next(os.walk(tmp_path))[2] == listed
            assert [os.path.basename(path) for path in glob.glob(f"{tmp_path}/*")] == listed
            assert [path.name for path in pathlib.Path(tmp_path).iterdir()] == listed
            assert sorted(listed) == list("abcd")
            orders.append(listed)
    assert orders[0] == orders[1][::-1]
    assert (os.listdir, os.scandir) == before


def test_loaders_get_the_number_of_workers_and_lose_what_needs_some():
    """Map-style loaders, subclasses included, get the count; an iterable dataset is left alone and named.

    Without `torchs` only loaders of samebits get it.
    """

    class Sub(torch.utils.data.DataLoader):
        pass

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    notes, own = [], LoaderWorkers([], [])
    with set_loader_workers(0, notes.append, own):
        assert (
            Sub(
                [1, 2], 1, None, None, None, 2, persistent_workers=True, prefetch_factor=4, timeout=5
            ).num_workers
            == 0
        )
        assert torch.utils.data.DataLoader(Stream(), num_workers=1).num_workers == 1
    with set_loader_workers(2, notes.append, own):
        assert Sub([1, 2]).num_workers == 2
    with set_loader_workers(None, notes.append, own):
        assert Sub([1, 2], num_workers=3).num_workers == 3
    with set_loader_workers(2, notes.append, own, torchs=False):
        assert Sub([1, 2], num_workers=1).num_workers == 1
        assert samebits.data.DataLoader([1, 2], num_workers=1).num_workers == 2
    assert own == ([1], [2, 0, 3, 1])
    assert Sub([1, 2]).num_workers == 0
    assert notes == ["Stream is iterable: its number of workers was not varied"]


INSTALLED = """
import functools
import torch

class Loader(torch.utils.data.DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

def wrapped(construct):
    @functools.wraps(construct)
    def inner(obj, *args, **kwargs):
        return construct(obj, *args, **kwargs)
    return inner

Loader.__init__ = wrapped(Loader.__init__)

def fit(data):
    return torch.utils.data.DataLoader(data, num_workers=1), Loader(data, num_workers=1)

def call(make, *args):
    return make(*args)
"""


def test_loaders_that_an_installed_package_makes_keep_their_number(tmp_path, monkeypatch):
    """Inside a package's `fit` nothing is varied, and the package is named; its classes, made by the user, are varied."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "frame_work.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    package = __import__("frame_work")
    notes, own = [], LoaderWorkers([], [])
    with set_loader_workers(0, notes.append, own):
        assert [loader.num_workers for loader in package.fit([1, 2])] == [1, 1]
        assert own == ([], []) and notes == [notes[0]] * 2
        assert notes[0] == "frame_work makes loaders of its own: their number of workers was not varied"
        users = package.Loader([1, 2], num_workers=1)
        called_back = package.call(lambda: torch.utils.data.DataLoader([1, 2], num_workers=1))
        assert (users.num_workers, called_back.num_workers, own.torchs) == (0, 0, [1, 1])


def test_files_opened_for_writing_elsewhere_are_named_once(tmp_path, monkeypatch):
    """A file outside is named with its path, its last one if renamed; reading, and writing below an allowed folder, are not."""
    monkeypatch.setattr("samebits.audit._record.opened_files._SCRATCH", ("/dev",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    files = {}
    with record_opened_files(files):
        for _ in range(2):
            open("metrics.csv", "a").close()
        open("metrics.csv").close()
        open("run/commit", "w").close()
        open("/dev/null", "w").close()
        for name in ("best.pt", "run/best.pt"):
            open(f"{name}.tmp", "w").close()
            os.replace(f"{name}.tmp", name)
    open("later.csv", "w").close()
    assert lines_outside(files, [tmp_path / "run"], str(tmp_path)) == [
        "writes outside its run directory: metrics.csv",
        "writes outside its run directory: best.pt",
    ]


@pytest.mark.parametrize("moved", [False, True])
def test_files_in_the_run_directory_are_inside_it(tmp_path, monkeypatch, moved):
    """A log in the folder of a Run is not named, where `verify` has moved the run either; one beside it (control) is."""
    monkeypatch.setattr("samebits.audit._record.opened_files._SCRATCH", ("/dev",))
    monkeypatch.chdir(tmp_path)
    if moved:
        process.overrides = CheckOverrides(run_root=tmp_path / "scratch")
    recorder = Recorder(RecordFile(tmp_path / "record"))
    allowed = (str(tmp_path / "record"), str(tmp_path / "scratch"))
    with recording(recorder, "script.py", level="state", every=1, allowed=allowed):
        samebits.set_random_seed(1)
        with samebits.Run("runs/fit"):
            os.makedirs("runs/fit", exist_ok=True)
            open("runs/fit/log.csv", "w").close()
            open("runs/log.csv", "w").close()
        recorder.finish()
    assert recorder.notes == ["writes outside its run directory: runs/log.csv"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def forward(self, x):
        return self.inner(x)


class Heard(TorchListener):
    def __init__(self):
        self.events = []

    def backward(self, roots):
        self.events.append("backward")

    def forward(self, module, inputs, output, *, evaluates):
        self.events.append((type(module).__name__, evaluates))

    def optimizer_step(self, optimizer):
        self.events.append("optimizer")


def use(model, loss_function):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function(model(torch.ones(3, 2)), torch.zeros(3, 2)).backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 2))


def test_torch_is_heard_at_the_top_level_only_and_left_as_it_was():
    """One event per call of the model, none for its layers or the loss; afterwards torch has its own methods."""
    before = torch.nn.Module.__call__, torch.autograd.backward
    heard = Heard()
    with torch_hooks(heard):
        use(Net(), torch.nn.MSELoss())
    assert heard.events == [("Net", False), "backward", "optimizer", ("Net", True)]
    assert (torch.nn.Module.__call__, torch.autograd.backward) == before
    use(Net(), torch.nn.MSELoss())
    assert len(heard.events) == 4


def test_compiled_models_are_heard_and_compile_in_one_graph():
    """The hooks break no graph of torch.compile."""
    heard = Heard()
    with torch_hooks(heard):
        model = torch.compile(Net(), backend="eager", fullgraph=True)
        use(model, torch.nn.MSELoss())
    assert heard.events == [("OptimizedModule", False), "backward", "optimizer", ("OptimizedModule", True)]


def forces(x: torch.Tensor) -> torch.Tensor:
    y = (x * x).sum()
    ones: list[torch.Tensor | None] = [torch.ones_like(y)]
    found = torch.autograd.grad([y], [x], ones, create_graph=True)[0]
    assert found is not None
    return found


def accumulates(x: torch.Tensor):
    torch.autograd.backward([(x * x).sum()])


def test_torchscript_knows_what_is_watched():
    """Functions that call torch.autograd.grad or backward are scripted as without the hooks, and nothing stays behind."""
    table = dict(torch.jit._builtins._get_builtin_table())
    x = torch.ones(3, requires_grad=True)
    with torch_hooks(Heard()):
        assert torch.jit.script(forces)(x).tolist() == [2.0, 2.0, 2.0]
        torch.jit.script(accumulates)(x)
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0, 2.0]
    assert torch.jit._builtins._get_builtin_table() == table


HEARD = """
import torch
from samebits.audit._record.torch_hooks import TorchListener, torch_hooks
class Roots(TorchListener):
    roots = []
    def gradient(self, roots):
        self.roots += roots
def gradient(x):
    return torch.autograd.grad(outputs=x.square().sum(), inputs=x)[0]
heard, x = Roots(), torch.ones(3, requires_grad=True)
with torch_hooks(heard):
    print(gradient(x).tolist(), [float(root) for root in heard.roots])
    print(torch.compile(gradient, backend="eager")(x).tolist(), len(heard.roots))
"""


@pytest.mark.slow
def test_torch_autograd_grad_is_heard_and_compiles(python):
    """One event, with what it starts from, given by name; in compiled code none, and the same numbers."""
    assert python(HEARD).stdout.splitlines() == ["[2.0, 2.0, 2.0] [3.0]", "[2.0, 2.0, 2.0] 1"]


def test_a_spec_survives_its_file(tmp_path):
    """Written and read back, a spec is the same; unknown entries and impossible values are refused."""
    overrides = CheckOverrides(run_root=tmp_path, commit_steps=(2, 5), num_workers=3)
    spec = LaunchSpec(record_dir="r", overrides=overrides, kill=Kill("commit", 5))
    assert read_spec(spec.write(tmp_path / "spec.json")) == spec
    (tmp_path / "other.json").write_text('{"speed": 3}')
    with pytest.raises(InvalidArgumentError, match="speed"):
        read_spec(tmp_path / "other.json")
    for wrong in ({"level": "all"}, {"every": 0}):
        with pytest.raises(InvalidArgumentError):
            LaunchSpec(**wrong)
    with pytest.raises(InvalidArgumentError):
        Kill("lunch", 1)
