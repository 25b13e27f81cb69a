"""`samebits.testing.assert_resumes_exactly`: what is right passes at every cut, what forgets is named."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from samebits.errors import InvalidArgumentError
from samebits.testing import assert_resumes_exactly


class Curriculum:
    """A sampler of a user's own: longer and longer prefixes, drawn with a private generator."""

    def __init__(self, forgets=()):
        self.forgets = forgets
        self.reach, self.position, self.generator = 3, 0, np.random.default_rng(4)

    def __iter__(self):
        while self.position < 5:
            self.position += 1
            self.reach += 1
            yield int(self.generator.integers(self.reach)), random.random()
        self.position = 0

    def state_dict(self):
        state = {"reach": self.reach, "position": self.position}
        state["generator"] = self.generator.bit_generator.state
        return {name: value for name, value in state.items() if name not in self.forgets}

    def load_state_dict(self, state):
        self.reach = state.get("reach", self.reach)
        self.position = state.get("position", self.position)
        self.generator.bit_generator.state = state.get("generator", self.generator.bit_generator.state)


class Mean:
    """A metric with a tensor; `aliases` gives out its own memory."""

    def __init__(self):
        self.total, self.count = torch.zeros(3), 0

    def update(self, number):
        self.total += torch.rand(3)
        self.count += number
        return self.total / (1 + self.count)

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class Warmup:
    """A schedule together with the optimizer that it moves."""

    def __init__(self):
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.5, total_steps=30)

    def step(self):
        self.optimizer.step()
        self.scheduler.step()
        return self.optimizer.param_groups[0]["lr"]

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])


def test_a_sampler_a_metric_and_a_schedule_that_keep_their_state_pass():
    """Whatever returns its whole state passes at every cut: samplers with generators, metrics, schedules."""
    assert_resumes_exactly(Curriculum)
    assert_resumes_exactly(Curriculum, json_state=True)
    assert_resumes_exactly(Mean, advance=Mean.update)
    assert_resumes_exactly(Mean, advance=Mean.update, steps=5, cut=[0, 5])
    assert_resumes_exactly(Warmup, cut=7)


@pytest.mark.parametrize(
    ("forgets", "cut", "step", "attribute"),
    [
        ("reach", 3, "step 3 ", "Curriculum.reach"),
        ("position", 3, "at step 5.", "Curriculum.position"),
        ("generator", 1, "step 1 ", "Curriculum.generator"),
    ],
)
def test_what_is_forgotten_is_named(forgets, cut, step, attribute):
    """Negative control: the message has the first step that differs, the attribute, and both digests."""
    with pytest.raises(AssertionError, match=f"resumed after {cut} steps") as caught:
        assert_resumes_exactly(lambda: Curriculum({forgets}), cut=cut)
    message = str(caught.value)
    assert step in message and attribute in message, message
    assert message.count("xxh3-64:") == (0 if "pass ends" in message else 2), message


def test_state_that_is_lost_only_at_the_end_of_a_pass_is_found():
    """Negative control: a loader that forgets its number of passes is equal in the first, and found in the second."""

    class Passes:
        def __init__(self):
            self.passes = self.at = 0

        def __iter__(self):
            while self.at < 4:
                self.at += 1
                yield self.at + 10 * self.passes
            self.passes, self.at = self.passes + 1, 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    assert_resumes_exactly(Passes, cut=3)
    with pytest.raises(AssertionError, match=r"step 6 gives other values.*Not restored: Passes\.passes"):
        assert_resumes_exactly(Passes, cut=6)


def test_a_state_dict_that_disturbs_or_cannot_be_saved_is_refused():
    """Negative control: asking for the state must change nothing, and it must be what a commit can hold."""

    class Disturbed(Mean):
        def state_dict(self):
            self.count += 1
            return super().state_dict()

    class Unsavable(Mean):
        def state_dict(self):
            return {"metric": self}

    class Tuples(Mean):
        def state_dict(self):
            return {"total": (1, 2), 3: 4}

    with pytest.raises(AssertionError, match="whose state_dict.. was called"):
        assert_resumes_exactly(Disturbed, advance=Mean.update)
    with pytest.raises(AssertionError, match="cannot be saved.*metric"):
        assert_resumes_exactly(Unsavable, advance=Mean.update)
    with pytest.raises(AssertionError, match="no JSON"):
        assert_resumes_exactly(Mean, advance=Mean.update, json_state=True)


def test_aliased_state_is_what_it_was_when_it_was_taken():
    """A state_dict that gives out live tensors is saved as of its step, as a commit saves it."""
    assert_resumes_exactly(Mean, advance=Mean.update, cut=[1, 2, 3])


def test_loaders_pipelines_and_datasets():
    """samebits' own loaders and pipelines pass, with JSON states; a dataset is read by number."""
    samebits.set_random_seed(1)

    class Counted(torch.utils.data.Dataset):
        served = 0

        def __len__(self):
            return 6

        def __getitem__(self, index):
            self.served += 1
            return self.served, torch.rand(2)

        def state_dict(self):
            return {"served": self.served}

        def load_state_dict(self, state):
            self.served = state["served"]

    numbers = list(range(10))
    assert_resumes_exactly(lambda: samebits.data.DataLoader(numbers, 3, shuffle=True), json_state=True)
    assert_resumes_exactly(
        lambda: samebits.data.Pipeline.from_source(numbers).shuffle(4).batch(3), json_state=True
    )
    assert_resumes_exactly(Counted)


def test_what_has_no_state_or_no_step_is_told():
    """Negative control: no state_dict, no way to move on, cuts outside: an error that says what to give."""
    with pytest.raises(InvalidArgumentError, match="no state_dict"):
        assert_resumes_exactly(object)
    with pytest.raises(InvalidArgumentError, match="advance="):
        assert_resumes_exactly(Mean)
    with pytest.raises(InvalidArgumentError, match="from 0 to 20"):
        assert_resumes_exactly(Warmup, cut=21)
    with pytest.raises(InvalidArgumentError, match="none of steps"):
        assert_resumes_exactly(lambda run_dir: None, steps=3)

    class Endless(Mean):
        def __iter__(self):
            while True:
                yield 1

    with pytest.raises(InvalidArgumentError, match="steps="):
        assert_resumes_exactly(Endless)
    assert_resumes_exactly(Endless, steps=7)


class Patience(samebits.callbacks.Callback):
    def __init__(self, forgets=False):
        self.bad, self.forgets = 0, forgets

    def on_epoch_end(self, trainer, epoch, logs):
        self.bad += 1
        trainer.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.bad)

    def state_dict(self):
        return {} if self.forgets else {"bad": self.bad}

    def load_state_dict(self, state):
        self.bad = state.get("bad", 0)


def test_a_callback_is_tried_in_a_fit():
    """A callback runs in a real small fit: every cut of one with its state is equal, one that forgets is found."""
    assert_resumes_exactly(Patience)
    with pytest.raises(AssertionError, match=r"cut before step 6: .*callbacks\[0\]\.bad"):
        assert_resumes_exactly(lambda: Patience(forgets=True), cut=6)


def train(run_dir, keep=True):
    samebits.set_random_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    objects = {"optimizer": optimizer} if keep else {}
    loader = samebits.data.DataLoader(list(torch.ones(10, 4)), batch_size=3, shuffle=True)
    with samebits.Run(run_dir, model=model, **objects) as run:
        for step, x in run.steps(loader, epochs=2):
            loss = model(x + torch.randn_like(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.state.best = min(run.state.get("best", 1e9), loss.item())
    return run.state.best


def test_a_run_function_is_cut_at_every_step():
    """A whole run is equal at every cut; without its optimizer the first difference is named with its digests."""
    assert_resumes_exactly(train)
    with pytest.raises(AssertionError, match=r"cut before step 3: .*optimizer"):
        assert_resumes_exactly(lambda run_dir: train(run_dir, keep=False), cut=3)


def adversarial(run_dir, keeps=True):
    """Two steps of a model, and in the body of each two of a critic."""
    samebits.set_random_seed(3)
    critic = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(critic.parameters(), 0.1)
    objects = {"optimizer": optimizer} if keeps else {}
    loader = samebits.data.DataLoader(torch.ones(4, 2), batch_size=2)
    with samebits.Run(run_dir, critic=critic, **objects) as run:
        for _ in run.steps(loader):
            for _, x in run.steps(loader, name="critic"):
                optimizer.zero_grad()
                critic(x).square().mean().backward()
                optimizer.step()


def test_a_cut_inside_a_nested_loop_goes_on_from_the_step_around_it():
    """A run that is left inside a nested loop begins again at the step around it, and a difference is told with both steps."""
    assert_resumes_exactly(adversarial, cut=[2, 3, 5])
    told = r"cut before step 5 \(inside the loop 'train/critic'; .* resumes from step 3, .*optimizer"
    with pytest.raises(AssertionError, match=told):
        assert_resumes_exactly(lambda run_dir: adversarial(run_dir, keeps=False), cut=5)
    with pytest.raises(AssertionError, match="cut before step 2 .*began at step 0. Does it give"):
        assert_resumes_exactly(lambda run_dir: adversarial(None), cut=2)


def test_a_run_function_that_ignores_its_run_dir_is_told(tmp_path):
    """Negative control: a function whose run starts anew is equal to itself, and is refused all the same."""
    with pytest.raises(AssertionError, match="began at step 0"):
        assert_resumes_exactly(lambda run_dir: train(None), cut=3)


def test_a_forward_before_the_run_is_no_step_of_it():
    """A program that calls its model once before it enters the run (a lazy layer, a warm-up) resumes exactly, too."""

    def program(run_dir):
        samebits.set_random_seed(1)
        model = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Dropout(0.1))
        model(torch.ones(1, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with samebits.Run(run_dir, model=model, optimizer=optimizer) as run:
            for _, x in run.steps(samebits.data.DataLoader(torch.randn(6, 3), batch_size=2)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    assert_resumes_exactly(program, cut=[0, 2])
