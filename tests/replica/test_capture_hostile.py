"""What a trace does not show of a step: followed, or refused by name; never called equal where ranks differ."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica import Equal, PerReplica, analyze, capture

W, X = torch.ones(4, 4), torch.ones(4, 4)


def parts(step):
    """The classes of the output of `step(w, x)` on 4 ranks; w and the generator are equal, x is per rank."""
    captured = capture(step, W, X, world_size=4)
    declared = {"w": Equal(), "x": PerReplica(), "generator:cpu": Equal()}
    known = {name: one for name, one in declared.items() if name in captured.input_names}
    return analyze(captured, known).partition("output")


ALL, ALONE, PAIRS = ((0, 1, 2, 3),), ((0,), (1,), (2,), (3,)), ((0, 1), (2, 3))


def by_environment(w, x):
    return w * int(os.environ["RANK"]) + int(os.environ["LOCAL_RANK"])


def out_makes_room(w, x):
    out = torch.zeros(0)
    torch.add(x, x, out=out)
    return out


def scattered_number(w, x):
    one = torch.tensor([0.0])
    dist.reduce_scatter_tensor(one, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return w * one.item()


def number_written_through_a_view(w, x):
    one = torch.tensor([1.0])
    one[0:1].add_(x[0, :1])
    return w * one.item()


def number_written_in_a_list(w, x):
    one = torch.tensor([1.0])
    torch._foreach_add_([one], [x[0, :1]])
    return w * one.item()


def sparse_values(w, x):
    sparse = w.to_sparse()
    sparse._values().mul_(x.sum())
    return sparse.to_dense()


def sparse_written(w, x):
    sparse = w.to_sparse()
    also = sparse.add_(x.to_sparse())
    return also.to_dense()


@pytest.mark.parametrize(
    "step",
    [
        by_environment,
        out_makes_room,
        scattered_number,
        number_written_through_a_view,
        number_written_in_a_list,
        sparse_values,
        sparse_written,
    ],
)
def test_what_a_trace_hides_varies(step):
    """Each of these differs on every rank of a real run, and was once called equal."""
    assert parts(step) == ALONE


def test_plain_numbers_and_out_stay_equal():
    """Control: the same ways with what is equal are equal."""

    def step(w, x):
        out, one = torch.zeros(0), torch.tensor([1.0])
        torch.add(w, w, out=out)
        one[0:1].add_(w[0, :1])
        return out * one.item()

    assert parts(step) == ALL


def test_groups_that_reduce_in_other_ways_differ():
    """A sum over ranks 0 and 1, a product over 2 and 3: equal within, not over the groups; with one way, over all."""

    def reduced(*ways):
        def step(w, x):
            half = dist.get_rank() // 2
            groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            y = w.clone()
            dist.all_reduce(y, op=ways[half], group=groups[half])
            return y

        return parts(step)

    assert reduced(dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT) == PAIRS
    assert reduced(dist.ReduceOp.SUM, dist.ReduceOp.SUM) == ALL


def seeded(w, x):
    torch.manual_seed(dist.get_rank())
    return w + torch.rand(4, 4)


def forked(w, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dist.get_rank())
        return w + torch.rand(4, 4)


def seeded_last(w, x):
    y = w + torch.rand(4, 4)
    torch.manual_seed(dist.get_rank())
    return y


def swapped(w, x):
    y = w.clone()
    y.data = x.clone()
    return y


def decided(w, x):
    return w + 1 if x.sum() > 0 else w


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (seeded, "manual_seed"),
        (forked, "manual_seed"),
        (seeded_last, "manual_seed"),
        (swapped, r"x.data.copy_\(y\)"),
        (decided, "reads the value of a tensor.*test_capture_hostile.py"),
    ],
)
def test_what_cannot_be_followed_is_refused(step, said):
    """Seeding by rank inside of the step, memory that is swapped, and Python code that looks at values: errors, with the cure."""
    with pytest.raises(UnimplementedError, match=said):
        parts(step)
    assert torch.Tensor.data is torch._C.TensorBase.data


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.held = torch.zeros(4, 4)
        self.calls = 0
        self.register_buffer("mean", torch.zeros(4, 4))


def attribute(model, x):
    with torch.no_grad():
        model.layer.weight.add_(model.held)
        model.held = x * 2


def buffer(model, x):
    with torch.no_grad():
        model.layer.weight.add_(model.mean)
        model.mean = x * 2


def new_buffer(model, x):
    model.register_buffer("late", x * 2)


def gradient(model, x):
    with torch.no_grad():
        if model.layer.weight.grad is not None:
            model.layer.weight.sub_(model.layer.weight.grad)
            model.layer.weight.grad = None
    model.layer(x).sum().backward()


def counted(model, x):
    model.calls += 1
    with torch.no_grad():
        model.layer.weight.add_(x if model.calls > 1 else 1)


@pytest.mark.parametrize("step", [attribute, buffer, new_buffer, gradient, counted])
def test_state_that_is_no_input_is_refused(step):
    """What one step leaves in objects and the next one reads makes the weights drift in the second step: refused by name."""
    with pytest.raises(UnimplementedError, match=r"model\.|second step"):
        capture(step, Recurrent(), X, world_size=2)


@pytest.mark.parametrize("to_none", [True, False])
def test_what_is_left_and_not_read_is_no_state(to_none):
    """Control: gradients cleared at the start of a step, caches that every step makes anew, and a rate that falls."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=to_none)
        model.cache = model(x)
        model.cache.sum().backward()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        optimizer.step()

    report = analyze(capture(step, model, optimizer, X, world_size=3), {"x": Equal()})
    report.expect_equal("model.weight", "model.bias")
    assert optimizer.param_groups[0]["lr"] == 0.1


def trained(model, optimizer, x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook", "optimizer"])
def test_hooks_that_a_copy_loses_are_refused(kind):
    """A hook of a parameter or an optimizer would not run in the trace: the step is refused, without the hook it is not."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture(trained, model, optimizer, X, world_size=2)
    if kind == "optimizer":
        optimizer.register_step_post_hook(lambda *_: model.weight.data.mul_(dist.get_rank()))
    else:
        getattr(model.weight, kind)(lambda _: None)
    with pytest.raises(UnimplementedError, match="hook"):
        capture(trained, model, optimizer, X, world_size=2)


def test_a_step_that_reaches_past_its_argument_is_refused():
    """The caller's model, closed over, beside the copy that is followed: refused; by the argument it is not."""
    outer = nn.Linear(4, 4)

    def past(model, x):
        with torch.no_grad():
            outer.weight.add_(x)

    with pytest.raises(InvalidArgumentError, match="closes over"):
        capture(past, outer, X, world_size=2)


@pytest.mark.parametrize("shape", [(), (4, 4)])
def test_what_a_step_closes_over_is_not_changed_by_a_capture(shape):
    """A counter beside the step is followed as state, and counts no trace."""
    counter = torch.zeros(shape)

    def step(w, x):
        counter.add_(1)
        return w + counter

    assert parts(step) == ALL
    assert not counter.any()


class Batch:
    def __init__(self, x):
        self.x, self.seen = x, torch.zeros(())


def test_a_batch_of_a_class_of_its_own_is_per_replica():
    """Tensors in an object that is no tree: those that are only read differ on the ranks, those that are written are state."""

    def step(model, batch):
        batch.seen.add_(1)
        return model(batch.x).sum(), batch.seen + 0

    report = analyze(capture(step, nn.Linear(4, 4), Batch(X), world_size=2))
    assert not report.is_replica_equal("output.0")
    assert report.is_replica_equal("output.1")


def test_what_is_sent_or_sparse_and_not_written_is_a_batch():
    """Nobody follows these ops; what they only read is no state for all that, and what is received (control) is."""

    def sent(x, into):
        dist.send(x, (dist.get_rank() + 1) % 2)
        dist.recv(into, (dist.get_rank() + 1) % 2)
        return x * 2

    def multiplied(x, into):
        into.add_(1)
        return torch.sparse.mm(x, into)

    for step, x in ((sent, X), (multiplied, torch.eye(3).to_sparse())):
        captured = capture(step, x, torch.ones(3, 4), world_size=2)
        assert captured.kinds == {"x": "batch", "into": "state"}
        assert not analyze(captured).is_replica_equal("output")


def test_state_of_parameters_that_came_later_is_followed():
    """An optimizer with state for its first group only: that of the second one is state of the step, too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model[0].parameters())
    model(X).sum().backward()
    optimizer.step()
    optimizer.add_param_group({"params": list(model[1].parameters())})
    captured = capture(trained, model, optimizer, X, world_size=2)
    assert "optimizer.model.1.weight.exp_avg" in captured.input_names
