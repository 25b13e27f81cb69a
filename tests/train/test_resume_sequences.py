"""Any sequence of steps, saves, kills, damaged commits, resumes and other workers ends with the same bits."""

import gc
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import nn

import samebits
from samebits import _context as context
from samebits import _digest as digest
from samebits._context import process
from samebits.checkpoint._store import CommitStore

EPOCHS = 3
FEW = settings(
    max_examples=16, stateful_step_count=6, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink]
)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return torch.randn(3) + index


class Program:
    """A training program that can be stopped between any two of its lines."""

    def __init__(self, run_dir, workers=0, keep_optimizer=True, save="explicit"):
        samebits.set_random_seed(6)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        objects = {"optimizer": self.optimizer} if keep_optimizer else {}
        # `next` in a function: its arguments are no locals of a loop, which the check would take them for
        self.run = samebits.Run(run_dir, save=save, check_complete=False, model=self.model, **objects)
        self.run.__enter__()
        loader = samebits.data.DataLoader(Data(), 3, shuffle=True, num_workers=workers)
        self.steps = self.run.steps(loader, epochs=EPOCHS)
        self.ended = False

    def step(self, half=False):
        """One iteration; `half`: only up to its backward."""
        found = next(self.steps, None)
        if found is None:
            self.ended = True
            return
        step, x = found
        loss = self.model(x).square().mean()
        loss.backward()
        if not half:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.run.state.total = self.run.state.get("total", 0.0) + loss.item()
            self.run.state.draws = [*self.run.state.get("draws", [])[-3:], torch.rand(()).item()]

    def kill(self):
        """What the kernel does for a killed container, and nothing else: the writer, the lock, the handlers are gone."""
        commits = self.run.parts.saving.commits
        commits.store.end_writer(kill=True)
        commits.store.close()
        self.run.parts.preemption.uninstall()
        fresh = context._ProcessState()
        for name in vars(fresh):
            setattr(process, name, getattr(fresh, name))

    def finish(self):
        while not self.ended:
            self.step()
        self.run.__exit__(None, None, None)
        return digest.of_value([self.model.state_dict(), self.optimizer.state_dict(), dict(self.run.state)])


class Training(RuleBasedStateMachine):
    """One run directory; at each moment a program works in it, or none does."""

    keep_optimizer = True
    expected = None

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.program, self.workers, self.durable = None, 0, -1

    @property
    def store(self):
        return CommitStore(self.folder / "run")

    @precondition(lambda self: self.program is None)
    @rule(save=st.sampled_from(["explicit", 1, 2]))
    def resume(self, save):
        """A new process; commits are made when asked for, or by a writer process after each or each second step."""
        self.program = Program(self.folder / "run", self.workers, self.keep_optimizer, save)

    @precondition(lambda self: self.program is not None)
    @rule(saves=st.lists(st.booleans(), min_size=1, max_size=5))
    def step(self, saves):
        """Some iterations; at the boundary before those that are marked, a commit."""
        for save in saves:
            if save:
                self.program.run.commit()
            self.program.step()
        self._note()

    @precondition(lambda self: self.program is not None)
    @rule(in_the_body=st.booleans())
    def kill(self, in_the_body):
        if in_the_body:
            self.program.step(half=True)
            self._note()
        self.program.kill()
        self.program = None
        gc.collect()

    @precondition(lambda self: self.program is None)
    @rule(
        save=st.sampled_from(["explicit", 1, 2]),
        saves=st.lists(st.booleans(), min_size=2, max_size=5),
        in_the_body=st.booleans(),
    )
    def live_and_die(self, save, saves, in_the_body):
        """A whole process, in one rule: what random rules rarely make of themselves."""
        self.resume(save)
        self.step(saves)
        self.kill(in_the_body)

    @precondition(lambda self: self.program is None and len(self._commits()) > 1)
    @rule(
        how=st.sampled_from(["flip", "truncate", "remove", "no manifest"]),
        place=st.floats(0, 1, exclude_max=True),
    )
    def corrupt_newest(self, how, place):
        newest = self._commits()[-1]
        files = sorted(
            path for path in newest.iterdir() if how != "no manifest" or path.name == "manifest.json"
        )
        file = files[int(place * len(files))]
        data = bytearray(file.read_bytes())
        at = int(place * len(data))
        data[at] ^= 1 << int(place * 8)
        {"flip": lambda: file.write_bytes(data), "truncate": lambda: file.write_bytes(data[:at])}.get(
            how, file.unlink
        )()
        self.durable = CommitStore(self.folder / "run").newest()[0].step

    @rule(workers=st.sampled_from([0, 0, 0, 2]))
    def change_workers(self, workers):
        """Of the next process."""
        self.workers = workers

    @invariant()
    def a_commit_that_was_durable_can_be_loaded(self):
        if self.program is None and self.durable >= 0:
            assert self.store.newest()[0].step >= self.durable

    def _commits(self):
        """Those on disk that are whole, in order."""
        found = self.store.newest() if (self.folder / "run").exists() else None
        if found is None:
            return []
        damaged = {folder.path for folder, _ in self.store.skipped}
        return sorted(path for path in (self.folder / "run" / "commits").glob("0*") if path not in damaged)

    def _note(self):
        last = self.program.run.parts.saving.commits.store.last
        self.durable = self.durable if last is None else last.step

    def teardown(self):
        try:
            if self.program is None:
                self.resume("explicit")
            assert self.program.finish() == self.expected, "another end"
        finally:
            shutil.rmtree(self.folder)


@pytest.fixture(autouse=True)
def _few_threads():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The end of a run that nothing happened to."""
    return Program(tmp_path_factory.mktemp("whole") / "run").finish()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:skipped the damaged commit")
def test_any_sequence_of_events_ends_with_the_same_bits(expected):
    """Steps, saves, kills, damaged commits, resumes, other workers, in any order: the end is that of a run in peace."""
    machine = type("Training", (Training,), {"expected": expected})
    run_state_machine_as_test(machine, settings=FEW)


@pytest.mark.filterwarnings("ignore:skipped the damaged commit")
def test_the_machine_finds_a_program_that_forgets(expected):
    """Negative control: a program that does not give its optimizer to the run is caught."""
    machine = type("Forgets", (Training,), {"expected": expected, "keep_optimizer": False})
    with pytest.raises(AssertionError, match="another end"):
        run_state_machine_as_test(machine, settings=settings(FEW, phases=[Phase.generate]))
