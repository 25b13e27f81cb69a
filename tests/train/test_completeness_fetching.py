"""What datasets, samplers and iterables keep from epoch to epoch is named, unless the loader or the loop sets it anew."""

import pytest

import carried_state

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = (
    carried_state.SCRIPT.replace("epochs=1", "epochs=4")
    .replace("torch.randn(64, 4)", "torch.randn(16, 4)")
    .replace("        {inside}", "        n = 0")
    .replace("        if len", "        {inside}\n        if len")
)
DATASET = """
class Noisy(TensorDataset):
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __getitem__(self, i): return x[i] + self.epoch, loader.dataset.tensors[1][i]
data = Noisy(*loader.dataset.tensors)
loader = samebits.data.DataLoader(data, batch_size=4)
"""
BATCHES = """
class Batches:
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 4
    def __iter__(self): return iter(np.random.RandomState(self.epoch).permutation(16).reshape(4, 4).tolist())
batches = Batches()
loader = samebits.data.DataLoader(loader.dataset, batch_sampler=batches)
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    reached = 0
    def __iter__(self):
        BEGIN
        for _ in range(16):
            self.reached = (self.reached + 1) % 61
            yield x[self.reached % 16] + self.reached / 9, self.reached % 2
stream = Stream()
loader = samebits.data.Pipeline.from_iterable(stream).batch(4)
"""
PIPELINE = """
from samebits.data import Pipeline
class Ages:
    def __init__(self, rows): self.rows, self.calls, self.seen = rows, 0, [0] * len(rows)
    def __len__(self): return len(self.rows)
    def __getitem__(self, i):
        self.seen[i] += 1
        return self.rows[i][0] * (1 + self.seen[i] / 9), self.rows[i][1]
    def __call__(self, row):
        self.calls += 1
        return row[0] + self.calls / 99, row[1]
def counter():
    n = 0
    def count(row):
        nonlocal n
        n += 1
        return row[0] + n / 99, row[1]
    return count
def age(row):
    row[2] += 1
    return row[0] * (1 + row[2] / 9), row[1]
rows = [[x[i], i % 2, 0] for i in range(16)]
ages, count = Ages(rows), counter()
loader = Pipeline.from_source(SOURCE).shuffle()MAP.batch(4)
"""


def pipeline(source, mapped=""):
    """A pipeline of a source, with a map."""
    return PIPELINE.replace("SOURCE", source).replace("MAP", mapped and f".map({mapped})")


LOST = {
    "a count of a mapped object": (pipeline("rows", "ages"), "", "ages.calls"),
    "a list of a source": (pipeline("ages"), "", "ages.seen"),
    "a variable of a mapped closure": (pipeline("rows", "count"), "", "count.n"),
    "elements that a map changes": (pipeline("rows", "age"), "", "rows"),
    "set at the end of an epoch": (DATASET, "if step.ends_epoch: data.set_epoch(step.epoch + 1)", "loader.dataset.epoch"),
    "set in an epoch's first step": (DATASET, "if step.batch_index == 0: data.set_epoch(step.epoch)", "loader.dataset.epoch"),
    "an attribute": (DATASET, "if step.ends_epoch: data.epoch = step.epoch + 1", "loader.dataset.epoch"),
    "a stream that goes on": (STREAM.replace("BEGIN", "pass"), "", "stream.reached"),
    "a stream that counts its epochs": (
        STREAM.replace("BEGIN", "self.n = getattr(self, 'n', 0) + 1; self.reached = self.n"), "", "stream.n",
    ),
}  # fmt: skip
HARMLESS = {
    "a sampler's epoch, which the loader sets": (BATCHES, "if step.ends_epoch: batches.set_epoch(step.epoch + 1)"),
    "a sampler's epoch, which nobody else sets": (BATCHES, ""),
    "a stream that begins anew": (STREAM.replace("BEGIN", "self.reached = 0"), ""),
    "a stream's shards, read once": (
        STREAM.replace("BEGIN", "self.reached = 0; self.kept = getattr(self, 'kept', {}); self.kept.setdefault(3, x * 2)"), "",
    ),
}  # fmt: skip
BY_EPOCH = SCRIPT.replace(
    "    for step, (a, b) in run.steps(loader, epochs=4):\n",
    "    for epoch in run.epochs(4):\n      {inside}\n      for step, (a, b) in epoch.steps(loader):\n",
).replace("        {inside}\n", "")


def quick_and_slow(cases, quick):
    """The names of the cases; but for these they are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in cases]


@pytest.mark.parametrize(
    "name",
    quick_and_slow(
        LOST, ["a count of a mapped object", "set at the end of an epoch", "a stream that goes on"]
    ),
)
def test_what_a_loader_does_not_set_anew_is_named(name, tmp_path):
    """A dataset's epoch that the loop sets after its batch was fetched, and where a stream stands, are in no commit."""
    before, inside, path = LOST[name]
    _, text = carried_state.whole(before, inside, tmp_path, SCRIPT)
    assert "IncompleteStateError" in text and f"  - {path}" in text, text


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "source, mapped, kept",
    [("rows", "ages", '"calls"'), ("ages", "", '"seen"'), ("rows", "age", "")],
)
def test_what_a_pipeline_changes_is_saved_by_its_object(source, mapped, kept, tmp_path):
    """With its object in the run there is no error, and the weights after a kill are equal."""
    name = mapped if mapped == "ages" else source
    added = f"samebits.state.attributes({name}, {kept})" if kept else name
    script = SCRIPT.replace("    for step,", f'    run.add("kept", {added})\n    for step,', 1)
    assert carried_state.verdict(pipeline(source, mapped), "", tmp_path, script) == "equal"


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "name",
    quick_and_slow(HARMLESS, ["a sampler's epoch, which nobody else sets", "a stream that begins anew"]),
)
def test_what_each_epoch_sets_anew_stops_no_run(name, tmp_path):
    """No error, and equal weights after a kill."""
    assert carried_state.verdict(*HARMLESS[name], tmp_path, SCRIPT) == "equal"


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "before, inside", [(DATASET, "data.set_epoch(int(epoch))"), (BATCHES, "batches.set_epoch(epoch)")]
)
def test_an_epoch_that_is_set_before_its_steps_stops_no_run(before, inside, tmp_path):
    """The usual `set_epoch(epoch)` in a loop over epochs: a resume sets it again. No error, and equal weights after a kill."""
    assert carried_state.verdict(before, inside, tmp_path, BY_EPOCH) == "equal"


CONFIG = "class Config: scale = 1.0\nconfig = Config()\n"


@pytest.mark.parametrize("sets, is_named", [("{inside}", False), ("if step.number % 3: {inside}", True)])
def test_an_attribute_that_each_step_of_an_epoch_sets_stops_no_run(sets, is_named, tmp_path):
    """Read after the steps, too: a warning, and equal weights after a kill. One that some steps set is named."""
    inside = "config.scale = 1.0 + step.number / 50"
    steps = f"        {sets.format(inside=inside)}\n        n = config.scale\n        if len"
    script = BY_EPOCH.replace("        if len", steps).replace("{inside}", "pass")
    script = script.replace('print("END"', '      print(config.scale)\nprint("END"')
    verdict = carried_state.verdict(CONFIG, "", tmp_path, script)
    assert verdict == ("named by Run" if is_named else "equal")
