"""A large tensor of a file on a disk is a view of it until it is copied: a restore needs no second copy of the state."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

import samebits
from samebits.checkpoint._store import CommitStore
from samebits.errors import CorruptCommitError, RunMismatchError
from samebits.train import _object_states
from store_commits import write_commit

LARGE = (512, 1024)
"""Two MB of float32."""
PLAIN = {"position": {}, "program": {}, "environment": {}, "finished": True}


def committed(tmp_path, state):
    """The state as it is read from a commit, and the file."""
    with CommitStore(tmp_path / "run") as store:
        write_commit(store, 1, state, **PLAIN)
        (file,) = store.run_dir.glob("commits/*/tensors.safetensors")
    return CommitStore(tmp_path / "run").newest()[1], file


def mapped_files():
    """The tensor files that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if "tensors.safetensors" in line}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.float8_e5m2, torch.bool, torch.int64]
)
def test_a_large_tensor_is_a_view_with_the_bits_that_were_written(tmp_path, dtype):
    """Of any dtype, behind a small tensor of odd size: mapped, equal bits; the small one has memory of its own."""
    large = torch.randint(0, 2, (2048, 1024), generator=torch.Generator().manual_seed(1)).to(dtype)
    state, file = committed(tmp_path, {"large": large, "small": torch.arange(3, dtype=torch.uint8)})
    assert str(file) in mapped_files()
    assert (
        torch.equal(state["large"].view(torch.uint8), large.view(torch.uint8))
        and state["large"].dtype == dtype
    )
    assert state["small"].tolist() == [0, 1, 2]
    state.clear()
    assert str(file) not in mapped_files()


def test_a_large_tensor_that_is_not_contiguous_comes_back_with_its_strides(tmp_path):
    """channels_last of 4 MB: equal values and strides, in memory of its own."""
    large = torch.arange(2.0**20).reshape(4, 64, 64, 64).to(memory_format=torch.channels_last)
    state, _ = committed(tmp_path, {"large": large})
    assert state["large"].stride() == large.stride() and torch.equal(state["large"], large)
    assert not mapped_files()


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_byte_in_a_large_tensor_is_found(tmp_path, place):
    """One bit at either end of a mapped tensor: CorruptCommitError that names the tensor."""
    _, file = committed(tmp_path, {"a": torch.zeros(LARGE), "b": torch.ones(LARGE)})
    data = bytearray(file.read_bytes())
    data[-1 if place == "last" else -2 * torch.zeros(LARGE).nbytes] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCommitError, match="tensor '[ab]' does not have the digest"):
        CommitStore(tmp_path / "run").newest()


def test_a_change_of_what_was_read_does_not_reach_the_file(tmp_path):
    """In-place arithmetic on a view: the next reader gets the committed bits."""
    state, _ = committed(tmp_path, {"w": torch.zeros(LARGE)})
    state["w"].add_(1)
    assert not CommitStore(tmp_path / "run").newest()[1]["w"].any()


class Keeps:
    """Keeps the very tensor that it is given."""

    def __init__(self):
        self.kept = torch.zeros(LARGE)

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


class KeepsModule(torch.nn.Linear):
    """A module that keeps the tensors that it is given."""

    def _load_from_state_dict(self, state, prefix, *rest):
        self.seen = state[prefix + "weight"]
        super()._load_from_state_dict(state, prefix, *rest)


def objects():
    """A module, one that keeps what it is given, another object that does, and an optimizer with a state."""
    model = torch.nn.Linear(1024, 512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1024)).sum().backward()
    optimizer.step()
    return {"keeps": Keeps(), "model": model, "module": KeepsModule(1024, 512), "optimizer": optimizer}


def run(tmp_path, objects):
    """A run of five steps."""
    samebits.set_random_seed(1)
    return samebits.Run(tmp_path / "run", save="explicit", check_complete=False, **objects)


def commit(tmp_path, objects):
    """Commits the objects as they are, and returns them."""
    with run(tmp_path, objects) as first:
        steps = first.steps([0] * 5)
        next(steps)
        first.commit()
        next(steps)
    return objects


def test_what_an_object_may_keep_has_memory_of_its_own(tmp_path, monkeypatch):
    """A module with an own loader, an object and an optimizer keep no view of the file; if all got views (negative control), they do."""
    saved = commit(tmp_path, objects())
    for views in (False, True):
        if views:
            monkeypatch.setattr(_object_states, "copies_what_it_loads", lambda thing: True)
        again = objects()
        with run(tmp_path, again) as resumed:
            next(resumed.steps([0] * 5))
            of_this = [one for one in mapped_files() if one.startswith(str(tmp_path))]  # not of other tests
            assert resumed.resumed and bool(of_this) is views
        momentum = again["optimizer"].state[again["model"].weight]["momentum_buffer"]
        assert torch.equal(momentum, saved["optimizer"].state[saved["model"].weight]["momentum_buffer"])
        assert torch.equal(again["module"].seen, saved["module"].weight)


def test_a_module_of_torch_is_given_views(tmp_path):
    """Control of the rule: Linear, BatchNorm and DataParallel copy what they load; a hook, an own loader, other objects may keep it."""
    hooked = torch.nn.Linear(2, 2)
    hooked.register_load_state_dict_pre_hook(lambda *_: None)
    bound = torch.nn.Linear(2, 2)
    bound.load_state_dict = lambda state: None
    copies = _object_states.copies_what_it_loads
    assert copies(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    assert copies(torch.nn.DataParallel(torch.nn.Linear(2, 2)))
    assert not any(map(copies, (hooked, bound, KeepsModule(2, 2), Keeps(), torch.nn.Sequential(hooked))))


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_change_between_enter_and_loop_is_undone(tmp_path, change):
    """A model that the program changes after `with`: the committed weights at the first batch; unchanged (control), they stay."""
    saved, model = (
        commit(tmp_path, {"model": torch.nn.Linear(1024, 512)})["model"],
        torch.nn.Linear(1024, 512),
    )
    with run(tmp_path, {"model": model}) as resumed:
        assert torch.equal(model.weight, saved.weight)
        model.weight.data.add_(change)
        next(resumed.steps([0] * 5))
        assert torch.equal(model.weight, saved.weight)


def test_a_module_that_does_not_get_the_saved_bits_is_refused(tmp_path):
    """Another dtype, a loader or a hook that changes a bit: RunMismatchError that names the tensor; the same model (control) resumes."""

    class Drops(torch.nn.Linear):
        def _load_from_state_dict(self, state, prefix, *rest):
            super()._load_from_state_dict(state, prefix, *rest)
            with torch.no_grad():
                self.weight[0, 0] += 1

    def clear(module, _):
        torch.nn.init.zeros_(module.weight)

    hooked = torch.nn.Linear(1024, 512)
    hooked.register_load_state_dict_post_hook(clear)
    Drops.__qualname__ = "Linear"  # another class is refused by its name
    commit(tmp_path, {"model": torch.nn.Linear(1024, 512)})
    for refused, model in (
        (False, torch.nn.Linear(1024, 512)),
        (True, torch.nn.Linear(1024, 512).bfloat16()),
        (True, Drops(1024, 512)),
        (True, hooked),
    ):
        with pytest.raises(RunMismatchError, match="weight") if refused else nullcontext():
            with run(tmp_path, {"model": model}):
                pass


RESTORE = """
import sys, threading, time
import torch
import samebits

def private():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))

samebits.set_random_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(12)))
loader = samebits.data.Pipeline.from_source(range(9)).batch(1)
samebits.Run(sys.argv[1] + "/other", model=torch.nn.Linear(2, 2)).__enter__().__exit__(None, None, None)
begin, peak, over = private(), 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, private())

thread = threading.Thread(target=watch)
with samebits.Run(sys.argv[1] + "/run", model=model, save="explicit", check_complete=False) as run:
    for step, _ in run.steps(loader):
        if step.number == 0:
            run.commit()
        if step.number == 1:
            break
torch.nn.init.zeros_(model[0].weight)
begin = private()
thread.start()
with samebits.Run(sys.argv[1] + "/run", model=model, save="explicit", check_complete=False) as run:
    next(run.steps(loader))
    assert run.resumed and model[0].weight.any()
    over.set()
    thread.join()
print((peak - begin) / (2048 * 2048 * 4))
"""


@pytest.mark.slow
def test_a_restore_takes_less_than_one_tensor_beside_the_model(tmp_path):
    """12 layers of 16 MiB: private memory during a resume grows by less than one; it was 24 when everything was read and copied."""
    done = subprocess.run(
        [sys.executable, "-c", RESTORE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1
