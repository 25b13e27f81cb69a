"""The files that callbacks write: whole, and after a resume as the commit knows them."""

import io
import math
import re
import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from samebits.callbacks import CSVLogger, ModelCheckpoint, TensorBoard
from samebits.errors import InvalidArgumentError, RecordError


class View:
    """What a callback sees of a trainer; with a run directory or without."""

    def __init__(self, run_dir=None):
        self.model = self.eval_model = nn.Linear(1, 1, bias=False)
        self.run_dir, self.resumed, self.validates = run_dir, False, True
        self.commits = 0

    def commit(self):
        self.commits += 1


def epochs(callback, view, values, first=0):
    """Gives one value per epoch of one step; the weight tells the epoch."""
    for epoch, value in enumerate(values, first):
        nn.init.constant_(view.model.weight, epoch)
        callback.on_batch_end(view, epoch, {"loss": value})
        callback.on_epoch_end(view, epoch, {"loss": value, "val_loss": value})


def resumed(callback, state, view):
    """The callback in a new process."""
    view.resumed = True
    callback.load_state_dict(state)
    callback.on_train_begin(view)
    return callback


def kept(folder):
    """Names and weights of the files in sight."""
    return {
        path.name: load_file(path)["weight"].item()
        for path in folder.iterdir()
        if not path.name.startswith(".")
    }


def log(path, view, **arguments):
    callback = CSVLogger(path, **arguments)
    callback.on_train_begin(view)
    return callback


@pytest.mark.parametrize("rows", [5, 2000])
def test_a_resumed_log_has_each_row_once(tmp_path, rows):
    """Cut at any commit, the log that a resume ends with has the bytes of one that was never interrupted."""
    values = [1 / (k + 1) for k in range(rows)]
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    epochs(log(whole, View(), update_freq="batch"), View(), values)
    for at in (0, 1, rows // 2, rows):
        first = log(cut, View(), update_freq="batch")
        epochs(first, View(), values[:at])
        state = first.state_dict()
        epochs(first, View(), values[at : at + 700], at)  # behind the commit, then killed
        assert len(state["_tail"]) < 20_000
        second = resumed(CSVLogger(cut, update_freq="batch"), state, View())
        epochs(second, View(), values[at:], at)
        assert cut.read_bytes() == whole.read_bytes()
        first.on_exit(View())
        second.on_exit(View())


def test_a_log_that_lost_what_was_not_on_disk_is_mended(tmp_path):
    """Rows that a power failure took from the file come back from the commit."""
    path = tmp_path / "log.csv"
    first = log(path, View())
    epochs(first, View(), [3.0, 2.0])
    text, state = path.read_text(), first.state_dict()
    path.unlink()
    resumed(CSVLogger(path), state, View()).on_exit(View())
    assert path.read_text() == text


def test_a_log_that_somebody_shortened_goes_on_with_a_warning(tmp_path):
    """Rows that no commit holds any more cannot come back: the log says so and goes on."""
    path = tmp_path / "log.csv"
    first = log(path, View(), update_freq="batch")
    epochs(first, View(), [1.0] * 3000)
    state = first.state_dict()
    path.write_text("step,loss\n")
    with pytest.warns(UserWarning, match="the file has 10. Somebody has shortened it"):
        resumed(CSVLogger(path, update_freq="batch"), state, View()).on_exit(View())


def test_append_keeps_what_was_there(tmp_path):
    """With append=True a new training's rows follow the file's, without a second header, and survive a kill."""
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss,val_loss\n0,9.0,9.0\n")
    view = View(run_dir=tmp_path)
    first = log(path, view, append=True)
    assert view.commits == 1  # before the first row, so that a restart knows where the run's rows begin
    state = first.state_dict()
    epochs(first, view, [3.0, 2.0])
    first.on_exit(view)
    second = resumed(CSVLogger(path, append=True), state, view)
    epochs(second, view, [3.0])
    assert path.read_text() == "epoch,loss,val_loss\n0,9.0,9.0\n0,3.0,3.0\n"
    second.on_exit(view)
    epochs(log(path, View()), View(), [1.0])
    assert path.read_text() == "epoch,loss,val_loss\n0,1.0,1.0\n"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: CSVLogger(path / "log.csv"), r"CSVLogger\(.*log.csv'\): File too large"),
        (lambda path: ModelCheckpoint(path / "all.pt"), r"ModelCheckpoint\(.*all.pt'\): File too large"),
    ],
)
def test_a_full_disk_is_named(forked, tmp_path, make, named):
    """A row or file that the disk refuses ends training with one line that names the callback; no half file stays."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
        callback, view = make(tmp_path), View(run_dir=tmp_path)
        callback.on_train_begin(view)
        with pytest.raises(RecordError) as caught:
            epochs(callback, view, [1.0] * 200)
        callback.on_exit(view)
        return str(caught.value)

    assert re.search(rf"{named}.*ulimit -f\) and run again", forked(limited).value)
    assert [path.name for path in tmp_path.iterdir()] in (["log.csv"], [])


def test_a_folder_that_cannot_be_made_is_named_before_the_first_step(tmp_path):
    """A path below a file is refused when training begins."""
    (tmp_path / "file").write_text("")
    for callback in (
        CSVLogger(tmp_path / "file" / "log.csv"),
        ModelCheckpoint(tmp_path / "file" / "{epoch}.pt"),
    ):
        with pytest.raises(RecordError, match="Something in the path is a file|Not a directory|File exists"):
            callback.on_train_begin(View())


VALUES = [0.5, math.nan, 0.4, 0.4, 0.6, 0.3, 0.7]


@pytest.mark.parametrize(
    ("arguments", "values", "epochs_kept"),
    [
        ({}, VALUES, [1, 2, 3, 4, 5, 6, 7]),
        ({"keep_best": 2}, VALUES, [3, 6]),
        ({"keep_best": 3}, VALUES, [3, 4, 6]),
        ({"keep_best": 2, "mode": "max"}, VALUES, [5, 7]),
        ({"keep_best": 2}, [math.nan, 0.5, math.nan], [1, 2]),
        ({"save_best_only": True}, [0.5, 0.6, 0.4], [1, 3]),
    ],
)
def test_the_files_of_the_best_epochs_stay(tmp_path, arguments, values, epochs_kept):
    """Every epoch's file, the k best (of equal ones the earlier, NaN last), or those that were the best in their time."""
    view, callback = View(), ModelCheckpoint(tmp_path / "{epoch:02d}.safetensors", **arguments)
    callback.on_train_begin(view)
    epochs(callback, view, values)
    assert kept(tmp_path) == {f"{epoch:02d}.safetensors": epoch - 1.0 for epoch in epochs_kept}
    assert len(list(tmp_path.iterdir())) == len(epochs_kept)  # nothing hidden is left


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("best.safetensors", {"save_best_only": True}),
        ("best.safetensors", {"keep_best": 1}),
        ("last.safetensors", {}),
        ("{epoch:02d}/{val_loss}.safetensors", {"keep_best": 2}),
    ],
)
@pytest.mark.parametrize("commit", [1, 2, 4])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_resume_finds_the_files_that_its_commit_knows(tmp_path, name, arguments, commit, ahead):
    """Whatever was replaced or dropped behind the commit is back after a resume, and the end is that of one go."""
    values = [0.5, 0.4, 0.6, 0.3, 0.2, 0.1, 0.9]
    view, folder = View(run_dir=tmp_path), tmp_path / "files"

    def start(state=None):
        callback = ModelCheckpoint(folder / name, **arguments)
        if state is not None:
            return resumed(callback, state, view)
        callback.on_train_begin(view)
        return callback

    def files():
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*.safetensors")
            if ".superseded" not in str(path)
        }

    first = start()
    epochs(first, view, values[:commit])
    state, expected = first.state_dict(), files()
    first.on_commit(view, commit)
    assert files() == expected
    epochs(first, view, values[commit : commit + ahead], commit)  # lost to a kill
    second = start(state)
    restored = files()
    assert {path: restored[path] for path in expected} == expected
    epochs(second, view, values[commit:], commit)
    second.on_commit(view, len(values))
    mine = files()
    shutil.rmtree(folder)
    view.resumed = False
    third = start()
    epochs(third, view, values)
    third.on_commit(view, len(values))
    assert mine == files()
    assert not list(folder.rglob("*.superseded"))


def test_without_the_files_set_aside_a_resume_would_not_find_them(tmp_path):
    """Negative control: with no run directory nothing is set aside, and the file is not the one that the state means."""
    view = View()
    first = ModelCheckpoint(tmp_path / "best.safetensors", save_best_only=True)
    epochs(first, view, [0.5])
    state = first.state_dict()
    epochs(first, view, [0.4], 1)
    resumed(ModelCheckpoint(tmp_path / "best.safetensors", save_best_only=True), state, view)
    assert kept(tmp_path) == {"best.safetensors": 1.0}


def test_a_kept_file_that_is_gone_is_named(tmp_path):
    """A file that somebody removed is a warning at the resume that says what to do; training goes on."""
    first = ModelCheckpoint(tmp_path / "{epoch}.pt")
    epochs(first, View(), [0.5])
    (tmp_path / "1.pt").unlink()
    with pytest.warns(
        UserWarning, match=r"1\.pt, written after epoch 1, is gone.*put a copy.*--export newest"
    ):
        resumed(ModelCheckpoint(tmp_path / "{epoch}.pt"), first.state_dict(), View())


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_weight_files_are_equal_for_equal_weights(tmp_path, suffix):
    """The bytes follow from the weights, not from the file's name, and are read back as they were, tied ones too."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("t", torch.arange(6).reshape(2, 3).T)

    view = View()
    view.eval_model = Tied()
    for name in ("one", "another"):
        epochs_callback = ModelCheckpoint(tmp_path / f"{name}.{suffix}")
        epochs_callback.on_epoch_end(view, 0, {})
    one, another = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "another"))
    assert one == another
    path = tmp_path / f"one.{suffix}"
    read = load_file(path) if suffix == "safetensors" else torch.load(io.BytesIO(one), weights_only=True)
    assert all(torch.equal(read[key], value) for key, value in view.eval_model.state_dict().items())


def test_what_safetensors_cannot_hold_is_named(tmp_path):
    """Extra state that is no tensor is an error that names it and offers .pt; nothing is written."""

    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"note": 1}

        def set_extra_state(self, state):
            pass

    view = View()
    view.eval_model = Extra(1, 1)
    with pytest.raises(InvalidArgumentError, match=r"_extra_state'\] is a dict.*Use a .pt file"):
        ModelCheckpoint(tmp_path / "m.safetensors").on_epoch_end(view, 0, {})
    assert list(tmp_path.iterdir()) == []
    ModelCheckpoint(tmp_path / "m.pt").on_epoch_end(view, 0, {})


def test_tensorboard_shows_each_step_once(tmp_path):
    """After a kill behind the commit and a resume, TensorBoard reads every step once, with the values of one go."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read():
        events = reader.EventAccumulator(str(tmp_path))
        events.Reload()
        return {
            tag: [(e.step, round(e.value, 3)) for e in events.Scalars(tag)]
            for tag in ("batch/loss", "val_loss")
        }

    values = [0.5, 0.25, 0.125, 1.0, 2.0, 4.0]
    first = TensorBoard(tmp_path, update_freq="batch")
    epochs(first, View(), values[:3])
    state = first.state_dict()
    assert read()["val_loss"] == [*enumerate(values[:3])]  # what the commit counts has left the process
    epochs(first, View(), [9.0, 9.0], 3)
    first._writer.flush()
    assert len(read()["val_loss"]) == 5
    second = resumed(TensorBoard(tmp_path, update_freq="batch"), state, View())
    epochs(second, View(), values[3:], 3)
    second.on_exit(View())
    assert read() == {"batch/loss": [*enumerate(values)], "val_loss": [*enumerate(values)]}
