"""Recorder and comparison: a difference in any component is seen at its step, by its name; equal runs are equal."""

import itertools
import json
import random

import numpy as np
import pytest
import torch

import samebits.data
import samebits.random
import samebits.replica
from samebits.audit._first_difference import first_difference, unstable
from samebits.audit._record.record_file import RecordFile, read_record
from samebits.audit._record.recorder import Recorder, recording
from samebits.callbacks import Callback
from samebits.errors import RecordError
from samebits.train import Run
from samebits.trainer import Trainer

AT = 3
TWIST = [""]  # not a local of the loops below: the recorder would see it, and rightly so


class Data:
    def __init__(self):
        self.counter = 0


class Loader(torch.utils.data.DataLoader):
    pass


class Average:
    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 1)
    )
    return model, torch.optim.Adam(model.parameters())


def with_run():
    """Six steps of two epochs; TWIST names what is broken in step AT."""
    samebits.random.set_random_seed(1)
    model, optimizer = make()
    average, meter = Average(), Data()
    scale, batches = (
        1.0,
        [torch.full((8, 4), float(number)) + torch.arange(32.0).view(8, 4) for number in range(3)],
    )
    data = Data()
    loader = torch.utils.data.DataLoader([0])
    object.__setattr__(loader, "dataset", data)
    with Run(None, model=model, optimizer=optimizer, average=average) as run:
        for step, x in run.steps(batches, epochs=2):
            now = TWIST[0] if step.number == AT else ""
            if now == "hidden":
                torch.rand(1)
            if now == "optimizer":
                optimizer.param_groups[0]["lr"] *= 1.0001
            loss = model(x).pow(2).mean() * scale
            if now == "loss":
                loss = loss * 1.0001
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if now == "model":
                model[0].weight.data[0, 0] += 1e-6
            if now == "buffers":
                model[1].running_mean += 1e-6
            if now == "exp_avg":
                optimizer.state[model[0].weight]["exp_avg"][0, 0] += 1e-9
            if now == "state":
                run.state.best = 1.0
            if now == "average":
                average.count += 1
            if now == "locals":
                scale = -0.0 + scale * 1.0000001
            if now == "attribute":
                meter.counter += 1
            if now == "dataset":
                loader.dataset.counter += 1
            run.log(loss=loss)
            if step.ends_epoch or step.number == AT:
                model.eval()
                with torch.no_grad():
                    model(x * (1.0001 if now == "eval" else 1.0))
                model.train()
    if TWIST[0] == "final":
        model[3].bias.data += 1e-6
    meter, loader


def plain():
    """Six optimizer steps without a Run."""
    model, optimizer = make()
    for step in range(6):
        now = TWIST[0] if step == AT else ""
        if now == "generators":
            torch.rand(1)
        x = torch.randn(8, 4)
        if now == "batch":
            x[0, 0] += 1e-6
        loss = model(x).pow(2).mean()
        if now == "loss":
            loss = loss * 1.0001
        optimizer.zero_grad()
        loss.backward()
        if now == "lr":
            optimizer.param_groups[0]["lr"] = 0.5
        optimizer.step()
    if TWIST[0] == "unused":
        random.seed()
    if TWIST[0] == "final":
        model[0].weight.data *= 2


def inference():
    """Forwards only."""
    model, _ = make()
    model.eval()
    for step in range(6):
        x = torch.randn(8, 4)
        if TWIST[0] == "batch" and step == AT:
            x[0, 0] += 1e-6
        if TWIST[0] == "output" and step == AT:
            model[0].weight.data *= 2
        with torch.no_grad():
            model(x)


numbers = itertools.count()


@pytest.fixture
def record(tmp_path):
    def run(script, twist="", **options):
        TWIST[0] = twist
        folder = tmp_path / str(next(numbers))
        np.random.seed(None)  # nobody uses it: must not count
        recorder = Recorder(RecordFile(folder), **options)
        with recording(
            recorder,
            "script.py",
            level=options.get("level", "state"),
            every=options.get("every", 1),
            allowed=(tmp_path,),
        ):
            script()
        recorder.finish()
        recorder.file.close()
        found = read_record(folder)
        assert not [note for note in found.notes if note.startswith("recorder")], found.notes
        return found

    return run


@pytest.mark.parametrize("script", [with_run, plain, inference])
@pytest.mark.parametrize("level", ["loss", "state"])
def test_equal_runs_have_equal_records(record, script, level):
    """Two runs of one program: every line equal, six steps, equal final digests."""
    a, b = record(script, level=level), record(script, level=level)
    assert first_difference(a, b) is None
    assert len(a.steps) == 6
    assert a.final == b.final
    assert a.final.startswith("xxh3-128:")


@pytest.mark.parametrize(
    ("script", "twist", "component", "path"),
    [
        (with_run, "optimizer", "optimizer", "param_groups.0.lr"),
        (with_run, "exp_avg", "optimizer", "state.0.exp_avg"),
        (with_run, "loss", "loss", None),
        (with_run, "model", "model", "0.weight"),
        (with_run, "buffers", "buffers", "1.running_mean"),
        (with_run, "state", "state", "run.state.best"),
        (with_run, "average", "state", "average.count"),
        (with_run, "locals", "locals", "scale"),
        (with_run, "attribute", "locals", "meter.counter"),
        (with_run, "dataset", "locals", "loader.dataset.counter"),
        (with_run, "eval", "eval", None),
        (with_run, "hidden", "loss", None),
        (plain, "generators", "generators", "torch"),
        (plain, "batch", "batch", "0"),
        (plain, "loss", "loss", None),
        (plain, "lr", "optimizer", "param_groups.0.lr"),
        (inference, "batch", "batch", "0"),
        (inference, "output", "output", ""),
    ],
)
def test_a_difference_in_each_component_is_seen_at_its_step(record, script, twist, component, path):
    """A program broken in one component at one step is different there, and the component comes first."""
    found = first_difference(record(script), record(script, twist))
    assert (found.step, found.component) == (AT, component), found.sentence()
    assert path is None or path in found.paths
    assert f"step {AT}" in found.sentence()


def test_what_only_the_end_shows_is_the_final_digest(record):
    """A change behind the loop leaves every step equal and the final digest different."""
    for script in (with_run, plain):
        found = first_difference(record(script), record(script, "final"))
        assert (found.component, found.place) == ("final", "end")


def test_generators_that_nobody_draws_from_do_not_count(record):
    """An unseeded generator is a difference only if it is used."""
    assert first_difference(record(plain), record(plain, "unused")) is None


def test_the_loss_level_sees_losses_and_learning_rates_only(record):
    """At level loss a changed buffer goes unseen, a changed loss does not; what is not seen is listed."""
    a = record(with_run, level="loss")
    assert first_difference(a, record(with_run, "loss", level="loss")).component == "loss"
    assert first_difference(a, record(with_run, "optimizer", level="loss")).component == "lr"
    assert "level loss" in a.end["not_seen"][0]


def test_every_keeps_epoch_ends(record):
    """With every=4, steps 0 and 4 and both epochs' last steps are recorded; all six are counted."""
    a = record(with_run, every=4)
    assert [step for _, step in a.steps] == [0, 2, 4, 5]
    assert a.end["steps"] == 6


def test_locals_that_differ_between_equal_runs_can_be_ignored(record):
    """A wall clock in a local is named by `unstable`, and then no difference."""
    a, b = record(with_run), record(with_run, "locals")
    assert unstable(a, b) == {"scale"}
    later = first_difference(a, b, ignore=unstable(a, b))
    assert later is None or later.component != "locals"


def test_an_optimizer_that_the_run_does_not_know_is_recorded_and_noted(record):
    """The hook sees every optimizer; that a restart would lose it stands in the notes."""

    def forgotten():
        samebits.random.set_random_seed(1)
        model, optimizer = make()
        with Run(None, model=model) as run:
            for _, x in run.steps([torch.randn(8, 4)] * 3):
                model(x).sum().backward()
                optimizer.step()

    found = record(forgotten)
    line = found.steps["train", 2]
    assert "state.0.exp_avg" in line.leaves["optimizer"]
    assert "optimizer Adam is used in training but was not given to Run" in found.notes


def test_a_step_that_is_captured_is_no_step(record):
    """Only the steps of the run are recorded, not that which `replica.capture` follows on copies before it; no note."""

    def captures():
        samebits.random.set_random_seed(1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())

        def train(model, optimizer, x):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        samebits.replica.capture(train, model, optimizer, torch.randn(8, 4), world_size=2)
        with Run(None, model=model, optimizer=optimizer) as run:
            for _, x in run.steps([torch.randn(8, 4)] * 3):
                train(model, optimizer, x)

    found = record(captures)
    assert list(found.steps) == [("train", 0), ("train", 1), ("train", 2)] and not found.notes


def test_an_object_that_cannot_be_hashed_is_a_note_and_the_run_goes_on(tmp_path):
    """A state_dict that raises costs its component, not the run."""

    class Broken(Average):
        def state_dict(self):
            raise RuntimeError("no state today")

    def script():
        samebits.random.set_random_seed(1)
        model, optimizer = make()
        with Run(None, model=model, broken=Broken()) as run:
            return [run_step.number for run_step, x in run.steps([1, 2])]

    recorder = Recorder(RecordFile(tmp_path))
    with recording(recorder, "s.py", level="state", every=1, allowed=()):
        assert script() == [0, 1]
    assert "no state today" in recorder.notes[0]
    assert recorder.finish() is not None


def test_moved_and_replaced_tensors_are_followed(record):
    """`.data = ...`, a new layer and a changed dtype are seen: no stale memory is hashed."""

    def script():
        model, optimizer = make()
        for step in range(5):
            model(torch.ones(4, 4)).sum().backward()
            if step == 1:
                model[0].weight.data = model[0].weight.data.clone()
            if step == 3 and TWIST[0]:
                model[0].weight.data = model[0].weight.data.double().mul(1.0001).float()
            optimizer.step()

    found = first_difference(record(script), record(script, "x"))
    assert (found.step, found.component) == (3, "model")
    assert found.paths == ("0.weight",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b'{"kind":"start"', "cut short"),
        (b'{"kind":"step"}\n', "expected a start line"),
        (b'{"kind":"start","schema":99}\n', "schema"),
        (b"\x80\x04K\x01.\n", "not a record"),
        (b'{"kind":"start","schema":1}\n[1]\n', "line 2"),
        (b'{"kind":"start","schema":1}\n{"kind":"step","step":0}\n', "line 2"),
        (b'{"kind":"start","schema":1}\n' + b"[" * 100000 + b"\n", "line 2"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path, content, message):
    """Whatever is in the file, reading it raises RecordError with the place, and nothing is executed."""
    (tmp_path / "record.jsonl").write_bytes(content)
    with pytest.raises(RecordError, match=message):
        read_record(tmp_path)
    with pytest.raises(RecordError, match="no record.jsonl|cannot read"):
        read_record(tmp_path / "nothing")


def test_a_torn_last_line_is_left_out(record):
    """A record cut anywhere in its last line reads as the lines before it."""
    whole = record(plain)
    data = whole.path.read_bytes()
    start = data.rindex(b"\n", 0, len(data) - 1) + 1
    for cut in (start + 1, len(data) - 1):
        whole.path.write_bytes(data[:cut])
        found = read_record(whole.path)
        assert found.end is None
        assert len(found.steps) == 6


def test_a_second_record_in_a_folder_keeps_the_first(tmp_path):
    """Restarts write record.1.jsonl and so on; a folder that cannot be written is a RecordError."""
    for _ in range(3):
        file = RecordFile(tmp_path)
        file.write({"kind": "start"})
        file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "record.1.jsonl",
        "record.2.jsonl",
        "record.jsonl",
    ]
    with pytest.raises(RecordError, match="cannot write"):
        RecordFile(tmp_path / "record.jsonl" / "below")


def test_every_line_is_json_with_a_kind(record):
    """The last line of a record is an object with the final digest under "final"."""
    lines = [json.loads(line) for line in record(with_run).path.read_text().splitlines()]
    assert lines[0]["kind"] == "start"
    assert lines[-1]["kind"] == "end"
    assert "final" in lines[-1]


class Counting(torch.utils.data.Dataset):
    def __init__(self):
        self.counter = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.counter += 1
        return torch.ones(4), torch.zeros(1)


def test_the_dataset_of_the_loop_is_walked_although_no_variable_names_it(record):
    """A counter on the dataset object is a leaf, also where only the loop's iterator holds the loader."""

    def script():
        samebits.random.set_random_seed(1)
        model, optimizer = make()
        with Run(None, model=model, optimizer=optimizer) as run:
            for _, (x, _) in run.steps(samebits.data.DataLoader(Counting(), batch_size=4)):
                model(x).sum().backward()
                optimizer.step()

    assert "loader.dataset.counter" in record(script).steps["train", 1].leaves["locals"]


def test_a_trainers_callbacks_are_walked(record):
    """With Trainer.fit the loop is samebits' own: the user's callbacks and their attributes are seen all the same."""

    class Patience(Callback):
        def __init__(self):
            super().__init__()
            self.wait = 0

    def script():
        samebits.random.set_random_seed(1)
        model, optimizer = make()
        trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[Patience()])
        trainer.fit(samebits.data.DataLoader(Counting(), batch_size=4), epochs=1, verbose=False)

    assert "callbacks[0].wait" in record(script).steps["train", 1].leaves["locals"]
