"""Programs in which something easily gets lost over a kill: each resumes to the bits of an uninterrupted run."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.errors import IncompleteStateError


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.randn(3) + index / 20


def loader(**more):
    return samebits.data.DataLoader(Noisy(), batch_size=4, shuffle=True, **more)


def step_of(model, opt, x):
    opt.zero_grad()
    model(x).square().mean().backward()
    opt.step()


def make(dtype=torch.float32, kind=torch.optim.Adam):
    samebits.set_random_seed(8)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
    return model, kind(model.parameters(), 0.05)


def a_loop_per_epoch_on_one_loader(run_dir):
    model, opt = make()
    data = loader()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for epoch in range(3):
            for _, x in run.steps(data, name=f"epoch{epoch}"):
                step_of(model, opt, x)
    return model.state_dict()


def a_warm_up_before_the_loop(run_dir):
    model, opt = make()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        losses = run.state.setdefault("losses", [])
        step_of(model, opt, torch.ones(2, 3))
        for _, x in run.steps(loader(), epochs=3):
            step_of(model, opt, x)
            losses.append(float(x.sum()))
    return model.state_dict(), losses


def parameters_that_only_the_optimizer_knows(run_dir):
    model, _ = make()
    centre = torch.randn(1, requires_grad=True)
    opt = torch.optim.Adam([*model.parameters(), centre], 0.05)
    with samebits.Run(run_dir, opt=opt) as run:
        for _, x in run.steps(loader(), epochs=3):
            step_of(lambda x: model(x) - centre, opt, x)
    return model.state_dict(), centre.detach()


def nadam_in_bfloat16(run_dir):
    model, opt = make(torch.bfloat16, torch.optim.NAdam)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, x in run.steps(loader(), epochs=3):
            step_of(model, opt, x.bfloat16())
    return model.state_dict()


def a_wrapped_loader(run_dir):
    class Bar:
        def __init__(self, inner):
            self.inner = inner

        def __len__(self):
            return len(self.inner)

        def __iter__(self):
            yield from self.inner

    model, opt = make()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, x in run.steps(Bar(loader()), epochs=3):
            step_of(model, opt, x)
    return model.state_dict()


def a_look_at_the_first_batch(run_dir):
    model, opt = make()
    data = loader()
    next(iter(data))
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, x in run.steps(data, epochs=3):
            step_of(model, opt, x)
    return model.state_dict()


def a_loop_left_by_break(run_dir):
    model, opt = make()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for step, x in run.steps(loader(), epochs=3, name="first"):
            step_of(model, opt, x)
            if step.number == 3:
                break
        for _, x in run.steps(loader(), epochs=2, name="second"):
            step_of(model, opt, x)
    return model.state_dict()


def frozen_then_trained(run_dir):
    model, opt = make()
    model[0].requires_grad_(False)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for step, x in run.steps(loader(), epochs=3):
            if step.number == 6:
                model[0].requires_grad_(True)
            step_of(model, opt, x)
    return model.state_dict()


def activation_checkpointing(run_dir):
    model, opt = make()
    part = nn.Sequential(model[0], samebits.nn.Dropout(0.5), model[1])
    with samebits.Run(run_dir, model=model, part=part, opt=opt) as run:
        for _, x in run.steps(loader(), epochs=3):
            step_of(
                lambda x: model[2](torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)), opt, x
            )
    return model.state_dict()


def an_iterator_that_is_given_to_the_run(run_dir):
    model, opt = make()
    it = iter(samebits.data.Pipeline.from_source(Noisy()).repeat().shuffle(8).batch(4))
    with samebits.Run(run_dir, model=model, opt=opt, it=it) as run:
        for _, _ in run.steps(range(15)):
            step_of(model, opt, next(it))
    return model.state_dict()


def an_iterator_by_hand_over_a_loader_of_the_run(run_dir, epochs=3):
    model, opt = make()
    data = loader()
    it = iter(data)
    with samebits.Run(run_dir, model=model, opt=opt, data=data) as run:
        for _, _ in run.steps(range(5 * epochs)):
            try:
                x = next(it)
            except StopIteration:
                it = iter(data)
                x = next(it)
            step_of(model, opt, x)
    return model.state_dict()


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, with a state_dict of its own form."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups = inner, inner.param_groups
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    def step(self):
        self.inner.step()
        with torch.no_grad():
            for slow, p in zip(self.slow, self.param_groups[0]["params"], strict=True):
                p.copy_(slow.lerp_(p, 0.5))

    def state_dict(self):
        return {"fast": self.inner.state_dict(), "slow": list(self.slow)}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["fast"])
        self.param_groups = self.inner.param_groups
        for slow, saved in zip(self.slow, state["slow"], strict=True):
            slow.copy_(saved)


def an_optimizer_around_another_one(run_dir):
    model, inner = make()
    opt = Lookahead(inner)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    with samebits.Run(run_dir, model=model, opt=opt, schedule=schedule) as run:
        for _, x in run.steps(loader(), epochs=3):
            step_of(model, opt, x)
            schedule.step()
    return model.state_dict()


def an_object_that_is_added_between_two_loops(run_dir):
    model, opt = make()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, x in run.steps(loader(), name="first"):
            step_of(model, opt, x)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
        run.add("schedule", schedule)
        for _, x in run.steps(loader(), epochs=2, name="second"):
            step_of(model, opt, x)
            schedule.step()
    return model.state_dict()


class Member:
    def __init__(self, model):
        self.model, self.score = model, 0.0


def models_that_change_places(run_dir):
    members = [Member(make()[0]) for _ in range(3)]
    opts = {
        f"opt{at}": torch.optim.Adam(one.model.parameters(), 0.01 + at / 50) for at, one in enumerate(members)
    }
    models = {f"model{at}": one.model for at, one in enumerate(members)}
    with samebits.Run(run_dir, **models, **opts, members=members) as run:
        for step, x in run.steps(loader(), epochs=3):
            for at, (one, opt) in enumerate(zip(members, opts.values(), strict=True)):
                opt.zero_grad()
                loss = (one.model(x) - at).square().mean()
                loss.backward()
                opt.step()
                one.score = loss.item()
            if step.number % 3 == 1:
                members.sort(key=lambda one: one.score)
    return [model.state_dict() for model in models.values()]


class Drawing(torch.utils.data.Dataset):
    """Draws from a generator of its own, and keeps a mean of what it has read."""

    def __init__(self):
        self.generator, self.mean = random.Random(3), 0.0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.mean = 0.9 * self.mean + index
        return torch.full((3,), self.generator.random() + self.mean)


def a_dataset_with_state_in_a_loader_of_torchs(run_dir):
    model, opt = make()
    data = Drawing()
    with samebits.Run(run_dir, model=model, opt=opt, data=samebits.state.attributes(data)) as run:
        for _, x in run.steps(torch.utils.data.DataLoader(data, 4, shuffle=True), epochs=3):
            step_of(model, opt, x)
    return model.state_dict()


class Environment:
    """Goes on from batch to batch: the run has its state."""

    def __init__(self):
        self.at = 1

    def __iter__(self):
        for _ in range(5):
            self.at = self.at * 5 % 23
            yield torch.full((4, 3), self.at / 23)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class SizedEnvironment(Environment):
    def __len__(self):
        return 5


class Counting(torch.utils.data.Sampler):
    """Batches that follow from a count of epochs, and from a place that each batch moves."""

    def __init__(self):
        self.epochs, self.place = 0, 1

    def __len__(self):
        return 5

    def __iter__(self):
        self.epochs += 1
        for number in range(5):
            self.place = self.place * 5 % 23
            yield [(self.place + number * self.epochs + one) % 20 for one in range(4)]


def a_sampler_with_state(run_dir, kind=samebits.data.DataLoader, workers=0):
    model, opt = make()
    sampler = Counting()
    data = kind(Noisy(), batch_sampler=sampler, num_workers=workers)
    with samebits.Run(run_dir, model=model, opt=opt, sampler=samebits.state.attributes(sampler)) as run:
        for _, x in run.steps(data, epochs=3):
            step_of(model, opt, x)
    return model.state_dict()


def a_sampler_with_state_and_workers(run_dir):
    return a_sampler_with_state(run_dir, workers=2)


def a_sampler_with_state_in_a_loader_of_torchs(run_dir):
    return a_sampler_with_state(run_dir, torch.utils.data.DataLoader)


def a_sampler_with_state_and_workers_of_torchs(run_dir):
    return a_sampler_with_state(run_dir, torch.utils.data.DataLoader, workers=2)


def a_generator_of_a_loader_that_draws_noise_too(run_dir):
    model, opt = make()
    generator = torch.Generator().manual_seed(3)
    data = torch.utils.data.DataLoader(Noisy(), 4, shuffle=True, generator=generator)
    with samebits.Run(run_dir, model=model, opt=opt, generator=generator) as run:
        for _, x in run.steps(data, epochs=3):
            step_of(model, opt, x + torch.rand(1, generator=generator))
    return model.state_dict()


def weights_that_change_in_mid_epoch(run_dir, kind=samebits.data.DataLoader):
    model, opt = make()
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(20), 20)
    weights = samebits.state.attributes(sampler, "weights")
    with samebits.Run(run_dir, model=model, opt=opt, weights=weights) as run:
        for step, x in run.steps(kind(Noisy(), 4, sampler=sampler), epochs=3):
            step_of(model, opt, x)
            sampler.weights[step.number] = 9.0
    return model.state_dict()


def weights_that_change_in_mid_epoch_in_a_loader_of_torchs(run_dir):
    return weights_that_change_in_mid_epoch(run_dir, torch.utils.data.DataLoader)


def an_iterable_that_goes_on_and_is_in_the_run(run_dir, kind=SizedEnvironment):
    model, opt = make()
    data = kind()
    with samebits.Run(run_dir, model=model, opt=opt, data=data) as run:
        for _, x in run.steps(data, epochs=3):
            step_of(model, opt, x)
    return model.state_dict()


def an_iterable_without_a_length_that_is_in_the_run(run_dir):
    return an_iterable_that_goes_on_and_is_in_the_run(run_dir, Environment)


def ended(program, run_dir, kill=None, commits=None):
    process.overrides = CheckOverrides(commit_steps=commits)
    if kill is not None:
        process.observers.append(AtStep("step_begins", kill))
    return digest.of_value(program(run_dir))


PROGRAMS = [
    a_loop_per_epoch_on_one_loader,
    a_warm_up_before_the_loop,
    parameters_that_only_the_optimizer_knows,
    nadam_in_bfloat16,
    a_wrapped_loader,
    a_look_at_the_first_batch,
    a_loop_left_by_break,
    frozen_then_trained,
    activation_checkpointing,
    an_iterator_that_is_given_to_the_run,
    an_iterator_by_hand_over_a_loader_of_the_run,
    an_optimizer_around_another_one,
    an_object_that_is_added_between_two_loops,
    models_that_change_places,
    a_dataset_with_state_in_a_loader_of_torchs,
    an_iterable_that_goes_on_and_is_in_the_run,
    an_iterable_without_a_length_that_is_in_the_run,
    a_sampler_with_state,
    a_sampler_with_state_and_workers,
    a_sampler_with_state_in_a_loader_of_torchs,
    a_sampler_with_state_and_workers_of_torchs,
    a_generator_of_a_loader_that_draws_noise_too,
    weights_that_change_in_mid_epoch,
    weights_that_change_in_mid_epoch_in_a_loader_of_torchs,
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.filterwarnings("ignore:resuming replays")
def test_killed_and_resumed_programs_are_equal(forked, tmp_path, program):
    """Killed right before a loop's first commit, in the first epoch, and later: equal to the uninterrupted program."""
    expected = forked(ended, program, None)
    assert expected.code == 0
    for cut, commits in ((2, (2,)), (5, (4,)), (7, (6,)), (11, (10,))):
        run_dir = tmp_path / str(cut)
        assert forked(ended, program, run_dir, cut, commits).code == -9
        assert forked(ended, program, run_dir).value == expected.value, cut


def test_activation_checkpointing_repeats_the_mask():
    """The recomputed forward has the first one's dropout mask: the gradient is that of the loss that was computed."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 8), torch.randn(8, 8, requires_grad=True)
    process.run_key, process.position = (5, 0), samebits._context.Position("train", 0, 0, 0)
    gradients = []
    for checkpointed in (False, True):
        layer = samebits.nn.Dropout(0.5, name="a")

        def part(x, layer=layer):
            return layer(torch.tanh(x @ weight))

        out = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False) if checkpointed else part(x)
        gradients.append(torch.autograd.grad(out.square().sum(), weight)[0])
    assert torch.equal(*gradients)


def test_more_epochs_go_on_from_the_end(forked, tmp_path):
    """A finished run that is asked for more epochs goes on, to the bits of a run that was asked for them at once."""

    def train(run_dir, epochs):
        model, opt = make()
        with samebits.Run(run_dir, model=model, opt=opt) as run:
            for _, x in run.steps(loader(), epochs=epochs):
                step_of(model, opt, x)
        return digest.of_value([model.state_dict(), opt.state_dict()])

    assert forked(train, tmp_path / "r", 2).code == 0
    assert forked(train, tmp_path / "r", 4).value == forked(train, None, 4).value


LARGE = """
import sys, torch, samebits
class Large(torch.utils.data.Dataset):
    def __len__(self): return 3
    def __getitem__(self, index):
        w = torch.randn(400_000)
        return w.mean() / w.std()
samebits.set_random_seed(1)
torch.set_num_threads(2)
print([x.item().hex() for x in samebits.data.DataLoader(Large(), num_workers=int(sys.argv[1]))], torch.get_num_threads())
"""


@pytest.mark.parametrize(
    "numbers", [range(9), list(range(9)), tuple(range(9))], ids=lambda n: type(n).__name__
)
def test_a_sequence_is_resumed_at_its_place(numbers, tmp_path, recwarn):
    """A loop over a range, a list or a tuple continues behind its last batch, and nothing is replayed; an iterable is (control)."""

    class Numbers:
        def __iter__(self):
            return iter(numbers)

    for kind, data, replayed in (("sequence", numbers, 0), ("iterable", Numbers(), 1)):
        seen = []
        for _ in range(2):
            with samebits.Run(tmp_path / kind, save=1, ignore=["seen"]) as run:
                for step, number in run.steps(data, epochs=2):
                    seen.append(number)
                    if step.number == 12 and not run.resumed:
                        break
        assert seen == [*range(9), *range(4), *range(3, 9)]
        assert sum("replays" in str(one.message) for one in recwarn) == replayed


@pytest.mark.slow
def test_large_sums_in_an_element_are_those_of_a_worker(python):
    """An element that sums a large tensor has the same bits inline and in a worker; the threads are put back."""
    inline = python(LARGE, 0).stdout
    assert inline == python(LARGE, 1).stdout and inline.endswith("2\n")


@pytest.mark.slow
def test_sigterm_to_the_whole_group_commits(root, tmp_path):
    """SIGTERM to the process group, loader workers included, ends in a commit and exit code 75."""
    command = [
        sys.executable,
        str(root / "examples" / "digits.py"),
        "--run-dir",
        str(tmp_path / "r"),
        "--workers",
        "2",
    ]
    with open(tmp_path / "log", "w") as log:
        child = subprocess.Popen(
            [*command, "--epochs", "50", "--patience", "50"], stdout=log, stderr=log, start_new_session=True
        )
    while "epoch  1" not in (tmp_path / "log").read_text():
        assert child.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(60) == 75
    assert "SIGTERM: committed at step" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_compiled_model_with_automatic_shapes_is_refused(python):
    """torch.compile's automatic dynamic shapes depend on what the process has met: refused, with the cure."""
    out = python(
        "import torch, samebits\n"
        "m = torch.nn.Linear(2, 2)\n"
        "samebits.Run(None, m=torch.compile(m, dynamic=False))\n"
        "try:\n    samebits.Run(None, m=torch.compile(m))\n"
        "except samebits.errors.UnimplementedError as error:\n    print(error)\n"
    ).stdout
    assert "torch.compile(model, dynamic=False)" in out
    assert "samebits.nn.compiled(model, dynamic=False)" in out


def test_an_iterator_by_hand_reads_what_the_loop_reads():
    """Read with next() and a new iter() at each end, a loader of the run gives the batches of one, two, three epochs."""
    data, seen = loader(seed=3), []
    it = iter(data)
    with samebits.Run(None, data=data, model=nn.Linear(1, 1)) as run:
        for _, _ in run.steps(range(15)):
            try:
                seen.append(next(it))
            except StopIteration:
                it = iter(data)
                seen.append(next(it))
    other = loader(seed=3)
    expected = [x for _ in range(3) for x in other]
    assert all(map(torch.equal, seen, expected)) and len(seen) == len(expected) == 15


def test_the_cure_for_an_iterator_names_what_can_be_done(tmp_path):
    """Of a samebits loader: give it to the run. Of torch's, which has no position: let the run read it."""
    for data, told in (
        (loader(), r"it \(an iterator.*Run\(it=loader\)"),
        (torch.utils.data.DataLoader(Noisy(), 4), r"it \(an iterator.*run.steps\(loader\)"),
    ):
        model, opt = make()
        it = iter(data)
        with (
            pytest.raises(IncompleteStateError, match=told),
            samebits.Run(tmp_path / type(data).__module__, model=model, opt=opt) as run,
        ):
            for _, _ in run.steps(range(5)):
                step_of(model, opt, next(it))


def test_a_loader_of_the_run_that_the_loop_reads_is_not_moved_by_a_look_in_the_body(forked, tmp_path):
    """Given to the run, read by run.steps and read once more in the body: killed and resumed it is equal, and the batches are the loop's."""

    def program(run_dir, given=True):
        model, opt = make()
        data = loader()
        with samebits.Run(run_dir, model=model, opt=opt, **({"data": data} if given else {})) as run:
            for step, x in run.steps(data, epochs=3):
                step_of(model, opt, x)
                if step.batch_index == 1:
                    step_of(model, opt, next(iter(data)))
        return model.state_dict()

    expected = forked(ended, program, None)
    assert expected.code == 0
    for cut, commits in ((3, (2,)), (8, (7,))):
        assert forked(ended, program, tmp_path / str(cut), cut, commits).code == -9
        assert forked(ended, program, tmp_path / str(cut)).value == expected.value
    assert forked(ended, lambda run_dir: program(run_dir, given=False), None).value == expected.value
