"""Groups that a program adds to an optimizer in mid-training: a commit knows them by name, and a resume makes them again."""

import pytest
import torch
from torch import nn

import samebits
from samebits._digest import of_value
from samebits.errors import InvalidArgumentError, RunMismatchError, UnsavableStateError

SCHEDULERS = {
    "none": lambda optimizer: None,
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, patience=0, factor=0.5
    ),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
}


class Killed(Exception):
    pass


def parts(scheduler):
    samebits.set_random_seed(3)
    model = nn.Sequential(*(nn.Linear(4, 8), nn.ReLU()), *(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[4].parameters(), 0.01)
    return model, optimizer, SCHEDULERS[scheduler](optimizer)


def batches():
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    return [(x[i : i + 4], (x[i : i + 4, 0] > 0).long()) for i in range(0, 16, 4)]


def thaw(layer, optimizer, scheduler, rate):
    layer.requires_grad_(True)
    optimizer.add_param_group({"params": layer.parameters(), "lr": rate, "initial_lr": rate})
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs.append(rate)


def update(model, optimizer, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def by_epochs(folder, kill, scheduler):
    model, optimizer, schedule = parts(scheduler)
    objects = {"model": model, "optimizer": optimizer} | ({"schedule": schedule} if schedule else {})
    with samebits.Run(folder, save=1, **objects) as run:
        for epoch in run.epochs(4):
            if epoch in (1, 2):
                thaw(model[2 if epoch == 1 else 0], optimizer, schedule, 0.002 / epoch)
            for step, batch in epoch.steps(batches()):
                if step.number == kill:
                    raise Killed
                value = update(model, optimizer, batch)
            if schedule:
                schedule.step(*([value] if scheduler == "plateau" else []))
    return of_value([model.state_dict(), optimizer.state_dict()])


def by_steps(folder, kill, scheduler):
    model, optimizer, schedule = parts(scheduler)
    with samebits.Run(folder, save=1, model=model, optimizer=optimizer) as run:
        if schedule:
            run.add("schedule", schedule)
        for step, batch in run.steps(batches(), epochs=4):
            if step.number == kill:
                raise Killed
            if step.number in (5, 8):
                thaw(model[2 if step.number == 5 else 0], optimizer, schedule, 0.01 / step.number)
            value = update(model, optimizer, batch)
            if schedule:
                schedule.step(*([value] if scheduler == "plateau" else []))
    return of_value([model.state_dict(), optimizer.state_dict()])


@pytest.mark.first_case_quick
@pytest.mark.parametrize("scheduler", [pytest.param("none", marks=pytest.mark.slow), "plateau", "cosine"])
@pytest.mark.parametrize("train", [by_epochs, by_steps])
def test_gradual_unfreezing_resumes_with_equal_bits(train, scheduler, tmp_path):
    """Killed before, in and after the epochs (or steps) that add a group, the run ends as one that nobody kills."""
    expected = train(tmp_path / "whole", None, scheduler)
    for kill in (3, 5, 9, 14):
        folder = tmp_path / str(kill)
        with pytest.raises(Killed):
            train(folder, kill, scheduler)
        assert train(folder, None, scheduler) == expected, kill


def test_a_group_of_what_no_module_names_is_an_error_at_its_line(tmp_path):
    """The error names the line and the cure, and nothing is added; with the module in the run (control) there is none."""
    model, optimizer, _ = parts("none")
    head = nn.Linear(2, 2)
    with samebits.Run(tmp_path / "run", model=model, optimizer=optimizer) as run:
        with pytest.raises(InvalidArgumentError, match=r"(?s)test_parameter_groups.py:\d+.*run\.add\("):
            optimizer.add_param_group({"params": head.parameters()})
        assert len(optimizer.param_groups) == 1
        run.add("head", head)
        optimizer.add_param_group({"params": head.parameters()})
        assert len(optimizer.param_groups) == 2
    torch.optim.SGD([{"params": [torch.zeros(2)]}]).add_param_group({"params": [torch.ones(2)]})


def test_a_group_is_repeated_only_by_the_code_before_a_resumed_epoch(tmp_path):
    """A second group of the same parameters is torch's error, as in a run that nobody killed."""
    with pytest.raises(Killed):
        by_epochs(tmp_path / "run", 9, "none")
    model, optimizer, _ = parts("none")
    with samebits.Run(tmp_path / "run", model=model, optimizer=optimizer) as run:
        assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2, 2]
        for epoch in run.epochs(4):
            if epoch == 2:
                thaw(model[0], optimizer, None, 0.1)  # made by the resume: the commit's rate stays
            for _, batch in epoch.steps(batches()):
                assert optimizer.param_groups[2]["lr"] == 0.001
                with pytest.raises(ValueError, match="more than one parameter group"):
                    thaw(model[0], optimizer, None, 0.1)
                update(model, optimizer, batch)
            break


def test_another_first_group_is_refused(tmp_path):
    """Groups are made again only behind those of the commit: a program that begins with other ones is another program."""
    with pytest.raises(Killed):
        by_epochs(tmp_path / "run", 9, "none")
    model, _, _ = parts("none")
    optimizer = torch.optim.AdamW(model[2].parameters(), 0.01)
    with pytest.raises(RunMismatchError, match="parameter groups"):
        with samebits.Run(tmp_path / "run", model=model, optimizer=optimizer):
            pass


@pytest.mark.parametrize("untie", [True, False])
def test_untied_weights_are_refused_where_their_group_is_added(untie, tmp_path):
    """A resume could not part what was one parameter: an error at the line. Control: tied all along, a group of another layer."""
    embedding, head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleDict({"embedding": embedding, "head": head, "more": nn.Linear(10, 10)})
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    with samebits.Run(tmp_path, model=model, optimizer=optimizer) as run:
        for _step, _batch in run.steps(range(2)):
            if not untie:
                optimizer.add_param_group({"params": model["more"].parameters()})
                break
            head.weight = nn.Parameter(embedding.weight.detach().clone())
            with pytest.raises(
                InvalidArgumentError, match="model.embedding.weight and model.head.weight were one"
            ):
                optimizer.add_param_group({"params": [head.weight]})
            break


class Around(torch.optim.Optimizer):
    """An optimizer around another (SAM): both have one list of groups, or two lists of the same groups."""

    def __init__(self, parameters, *, one_list):
        super().__init__(parameters, {"lr": 0.05, "momentum": 0.9})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.base.param_groups = self.base.param_groups if one_list else [*self.base.param_groups]
        self.param_groups = self.base.param_groups if one_list else [*self.base.param_groups]

    def step(self, closure=None):
        self.base.step()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base.param_groups = self.param_groups


@pytest.mark.parametrize("one_list", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "order",
    [
        ["outer", "base"],
        *(pytest.param(one, marks=pytest.mark.slow) for one in (["base", "outer"], ["outer"])),
    ],
)
def test_optimizers_that_share_groups_share_them_after_a_resume(order, one_list, tmp_path):
    """Whichever loads first, and where the base is in no run: a scheduler of the outer one moves the base's rate."""

    def train(folder, kill=None):
        samebits.set_random_seed(3)
        model = nn.Linear(4, 2)
        outer = Around(model.parameters(), one_list=one_list)
        scheduler = torch.optim.lr_scheduler.StepLR(outer, 4, 0.5)
        objects = {name: {"outer": outer, "base": outer.base}[name] for name in order}
        ignored = [] if "base" in order else ["outer.base"]
        with samebits.Run(folder, model=model, scheduler=scheduler, **objects, save=2, ignore=ignored) as run:
            for step, batch in run.steps(batches(), epochs=3):
                update(model, outer, batch)
                scheduler.step()
                if step.number == kill:
                    raise Killed
        assert outer.base.param_groups[0] is outer.param_groups[0]
        assert (outer.base.param_groups is outer.param_groups) == one_list
        return outer.base.param_groups[0]["lr"]

    expected = train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "run", 3)
    assert train(tmp_path / "run") == expected < 0.05


def swap(first, second):
    first["params"], second["params"] = second["params"], first["params"]


def move(first, second):
    second["params"].append(first["params"].pop(0))


def leave(first, second):
    first["params"].pop(0)


def rearranged(folder, change, kill=-1):
    samebits.set_random_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "lr": 0.001}]
    optimizer = torch.optim.Adam(groups)
    with samebits.Run(folder, save=1, model=model, optimizer=optimizer) as run:
        for step, batch in run.steps(batches(), epochs=3):
            if step.number == kill:
                raise Killed
            if step.number == 3:
                change(*optimizer.param_groups)
            update(model, optimizer, batch)
    return [one.tolist() for one in model.parameters()]


@pytest.mark.parametrize("change", [swap, move])
def test_parameters_that_change_groups_are_where_they_were(change, tmp_path):
    """Exchanged or moved in a step: killed later, the weights are equal."""
    whole = rearranged(tmp_path / "whole", change)
    assert whole != rearranged(tmp_path / "unchanged", lambda *_: None)
    for kill in (6, 9):
        with pytest.raises(Killed):
            rearranged(tmp_path / "run", change, kill)
    assert rearranged(tmp_path / "run", change) == whole


def test_a_parameter_that_leaves_the_groups_is_refused_at_the_commit(tmp_path):
    """A resumed optimizer would have it again: the error says how to train it no more."""
    with pytest.raises(
        UnsavableStateError, match=r"model\.0\.weight was taken out of the groups of optimizer"
    ):
        rearranged(tmp_path / "run", leave)
