"""Where a layer's key comes from: a run, set_step, a key of its own, or torch's generator; and repeated forwards."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import samebits
from samebits._context import CheckOverrides, Position, at_import, process
from samebits.errors import DuplicateNameError, InvalidArgumentError, UnimplementedError, UnseededError
from samebits.nn import Dropout, _layer_keys, own_randomness, set_step

X = torch.ones(40)


def model():
    return nn.Sequential(Dropout(0.5), nn.Sequential(Dropout(0.5)))


def train(net, steps, noise=0):
    """One mask per step; `noise` other draws come in between."""
    masks = []
    for step in steps:
        set_step(net, step, seed=3)
        torch.rand(noise)
        masks.append(torch.cat([net(X), net[0](X)]))
    return torch.stack(masks)


def test_a_plain_loop_with_set_step_is_a_function_of_the_step():
    """Masks are those of (seed, path, step, call): from the middle too, and whoever else draws; others differ."""
    masks = train(model(), range(6))
    assert torch.equal(train(model(), range(3, 6), noise=5), masks[3:])
    assert len({tuple(row) for row in masks.tolist()}) == 6
    other = model()
    set_step(other, 0, seed=4)
    assert not torch.equal(torch.cat([other(X), other[0](X)]), masks[0])
    assert torch.equal(train(nn.Sequential(*model()), [2, 2])[1], masks[2])  # a step said again starts anew


def test_set_step_takes_the_seed_of_the_process():
    """Without a seed it is that of set_random_seed; without any, an error with the cure."""
    samebits.set_random_seed(3)
    net = model()
    set_step(net, 0)
    assert torch.equal(torch.cat([net(X), net[0](X)]), train(model(), [0])[0])


def test_set_step_without_a_seed_is_refused(monkeypatch):
    """In a process that nobody seeded, set_step raises."""
    monkeypatch.setattr(at_import, "torch_seed", 2**40)  # as if no process had been seeded
    torch.default_generator.manual_seed(2**40)
    with pytest.raises(UnseededError, match="seed=..."):
        set_step(model(), 0)


def test_torchs_dropout_depends_on_who_else_draws():
    """Negative control: with torch's layers the same loop gives other masks after another draw."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5))
    a = net(X)
    torch.manual_seed(0)
    torch.rand(5)
    assert not torch.equal(net(X), a)


def test_a_key_of_its_own_counts_calls():
    """After own_randomness(key=...) call n of a path has one mask, whoever else draws; another key gives another."""

    def masks(number, noise):
        net = own_randomness(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), key=samebits.random.key(number))
        return torch.stack([(torch.rand(noise), net[0](X), net[1](X))[1:][i % 2] for i in range(4)])

    first = masks(1, 0)
    assert torch.equal(masks(1, 3), first) and not torch.equal(masks(2, 0), first)
    assert len({tuple(row) for row in first.tolist()}) == 4


def test_without_anything_the_key_is_drawn_from_torchs_generator():
    """Otherwise the layer behaves as torch's: the generator's state decides."""
    net = model()
    torch.manual_seed(1)
    a, b = net(X), net(X)
    torch.manual_seed(1)
    assert torch.equal(net(X), a) and not torch.equal(a, b)


def test_layers_with_a_key_do_not_move_torchs_generator():
    """A keyed forward and backward leave the default generator alone, so that a layer more or less shifts nobody."""
    net = model()
    set_step(net, 0, seed=1)
    before = torch.get_rng_state()
    net(X.clone().requires_grad_()).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_copy_does_not_draw_the_masks_of_its_original():
    """A deepcopied layer is refused outside a run until it is told its own key, and gets a path of its own in a run."""
    net = model()
    set_step(net, 0, seed=1)
    twin = copy.deepcopy(net)
    with pytest.raises(InvalidArgumentError, match="is a copy"):
        twin(X)
    set_step(nn.ModuleDict({"twin": twin}), 0, seed=1)
    assert not torch.equal(twin(X), net(X))
    samebits.Run(None, net=net, twin=copy.deepcopy(net))
    assert net[0].layer_name == "net.0"
    again = copy.deepcopy(net)
    samebits.Run(None, again=again)
    assert again[0].layer_name == "again.0"


def test_two_layers_of_one_name_are_refused():
    """Copies of a layer with a name, or a name that is another's path, raise before anything is changed."""
    layer = Dropout(0.5, name="head")
    twins = nn.ModuleList([layer, copy.deepcopy(layer)])
    for naming in (lambda: samebits.Run(None, model=twins), lambda: set_step(twins, 0, seed=1)):
        with pytest.raises(DuplicateNameError, match="'head'"):
            naming()
    with pytest.raises(DuplicateNameError):
        samebits.Run(None, model=nn.ModuleDict({"a": Dropout(), "b": Dropout(name="model.a")}))
    samebits.Run(None, model=nn.ModuleList([layer, layer]))  # one layer at two places has one name


def test_a_shared_layer_goes_by_its_first_path_and_draws_anew_at_each_call():
    """One instance at two paths is named once; its two calls in a step have two masks."""
    layer = Dropout(0.5)
    net = nn.ModuleList([layer, layer])
    samebits.Run(None, model=net)
    assert layer.layer_name == "model.0"
    set_step(net, 0, seed=1)
    assert not torch.equal(net[0](X), net[1](X))


class Killed(Exception):
    pass


def steps_of(run_dir, noise=0, killed_in=None):
    """Outputs per step of a real run, with so many other draws per step."""
    torch.manual_seed(1)
    net = own_randomness(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LSTM(4, 4, 2, dropout=0.5)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = {}
    with samebits.Run(run_dir, model=net, opt=opt, ignore=["outputs"]) as run:
        for step, x in run.steps([torch.ones(3, 4)] * 3, epochs=2):
            if step.number == killed_in:
                raise Killed
            torch.rand(noise)
            out = net(x)[0] + net[1](x)
            outputs[step.number] = out.detach().clone()
            opt.zero_grad()
            out.sum().backward()
            opt.step()
    return outputs


@pytest.mark.filterwarnings("ignore:resuming replays")
def test_a_runs_masks_are_a_function_of_the_step(tmp_path):
    """In a real Run the masks of a replaced model depend neither on other draws nor on a resume; steps differ."""
    samebits.set_random_seed(5)
    whole = steps_of(None)
    again = steps_of(None, noise=7)
    assert len(whole) == 6 and all(torch.equal(whole[n], again[n]) for n in whole)
    assert len({tuple(m.flatten().tolist()) for m in whole.values()}) == 6
    process.overrides = CheckOverrides(commit_steps=(3,))
    with pytest.raises(Killed):
        steps_of(tmp_path, killed_in=4)
    resumed = steps_of(tmp_path, noise=2)
    assert sorted(resumed) == [3, 4, 5] and all(torch.equal(whole[n], resumed[n]) for n in resumed)


def test_a_second_run_in_one_process_repeats_the_first():
    """A step of the same number in a new run counts its calls anew: equal masks."""
    samebits.set_random_seed(5)
    net = model()
    masks = []
    for _ in range(2):
        with samebits.Run(None, model=net) as run:
            masks += [net(X) for _, _ in run.steps([0])]
    assert torch.equal(*masks)


# Activation checkpointing


def place(where, net):
    if where == "run":
        process.run_key, process.position = (5, 0), Position("train", 0, 0, 0)
        _layer_keys.name_layers(net, "model")
    elif where == "set_step":
        set_step(net, 0, seed=1)
    else:
        own_randomness(net, key=samebits.random.key(1))


class Twice(nn.Module):
    """A layer that is called three times, in two checkpointed parts, one nested in the other."""

    def __init__(self):
        super().__init__()
        self.layer = Dropout(0.5)
        self.weight = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))

    def part(self, x):
        return self.layer(torch.tanh(self.layer(x @ self.weight) @ self.weight)).sin()

    def forward(self, x, wrap):
        return wrap(lambda x: wrap(self.part, self.part(x)) * self.layer(x), wrap(self.part, x)).sum()


def gradient(net, wrap, runs=1):
    x = torch.linspace(-1, 1, 64).view(4, 16).requires_grad_()
    losses = [net(x, wrap) for _ in range(runs)]
    net.zero_grad()
    for loss in losses:  # the forwards of all come before the backward of the first
        loss.backward()
    return [*(loss.detach() for loss in losses), x.grad, net.weight.grad]


PLAIN = lambda part, x: part(x)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["run", "set_step", "key"])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_checkpointing_repeats_each_call_with_its_own_mask(where, reentrant):
    """Nested, reentrant or not, with several calls of one layer and two forwards before a backward: plain gradients."""
    results = []
    for wrap in (PLAIN, lambda part, x: checkpoint(part, x, use_reentrant=reentrant)):
        net = Twice()
        place(where, net)
        results.append(gradient(net, wrap, runs=2))
    assert torch.equal(results[0][0], results[1][0])
    # reentrant backward adds a parameter's gradients up in another order
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6) if reentrant else torch.equal(a, b)


def test_the_next_forward_does_not_notice_that_an_earlier_one_was_repeated():
    """Repetitions do not count as calls: the second step's masks are those of a program without checkpointing."""
    results = []
    for wrap in (PLAIN, lambda part, x: checkpoint(part, x, use_reentrant=False)):
        net = Twice()
        place("run", net)
        gradient(net, wrap)
        results.append(gradient(net, wrap))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_checkpointing_of_the_generators_key():
    """Where the key comes from torch's generator, a recomputed forward has its first mask."""
    layer = Dropout(0.5)
    x = torch.ones(200, requires_grad=True)
    out = checkpoint(lambda x: layer(x.sin()), x, use_reentrant=False)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad == 0, out == 0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_checkpointing_that_does_not_restore_the_generator_is_refused(reentrant):
    """With preserve_rng_state=False nobody knows which call is repeated: an error that names the cure."""
    net = Twice()
    place("run", net)
    with pytest.raises(UnimplementedError, match="preserve_rng_state=True"):
        gradient(net, lambda part, x: checkpoint(part, x, use_reentrant=reentrant, preserve_rng_state=False))


def test_a_layer_that_draws_anew_has_wrong_gradients():
    """Negative control: counting the repetition as a new call gives other gradients than the loss's."""

    class Broken(Dropout):
        def _next_words(self):
            return self._calls().next()

    results = []
    for wrap in (PLAIN, lambda part, x: checkpoint(part, x, use_reentrant=False)):
        net = Twice()
        net.layer = Broken(0.5)
        place("set_step", net)
        results.append(gradient(net, wrap))
    assert torch.equal(results[0][0], results[1][0]) and not torch.equal(results[0][2], results[1][2])


def test_many_calls_are_forgotten_oldest_first(monkeypatch):
    """Only so many repeatable calls are kept; an older one is refused, not given another's mask."""

    monkeypatch.setattr(_layer_keys, "_KEPT", 10)
    net = Twice()
    place("run", net)
    x = torch.ones(4, 16, requires_grad=True)
    loss = net(x, lambda part, x: checkpoint(part, x, use_reentrant=False))
    with torch.no_grad():
        for _ in range(10):
            net.layer(x)
    assert len(_layer_keys._keys) == 10
    with pytest.raises(UnimplementedError):
        loss.backward()


# Compilers and tracers


def test_compiled_code_asks_for_a_new_key_at_each_call():
    """torch.compile breaks the graph at the key: each step has its own mask, the eager program's."""
    eager, net = model(), model()
    compiled = torch.compile(net, backend="eager")
    masks = []
    for step in range(4):
        set_step(eager, step, seed=1)
        set_step(net, step, seed=1)
        masks.append(compiled(X))
        assert torch.equal(masks[-1], eager(X))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(masks, 2))
    set_step(compiled, 0, seed=1)  # the wrapper is no part of a layer's path
    assert torch.equal(compiled(X), masks[0])
    wrapped = torch.compile(net, backend="eager", dynamic=False)
    samebits.Run(None, model=wrapped)
    assert net[1][0].layer_name == "model.1.0"


def test_a_graph_without_breaks_is_refused():
    """fullgraph=True raises: it would need the mask as a constant."""
    torch._dynamo.reset()  # code that was compiled with breaks would be used again
    net = model()
    set_step(net, 0, seed=1)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(net, backend="eager", fullgraph=True)(X)


@pytest.mark.parametrize(
    "trace",
    [
        lambda net: torch.fx.experimental.proxy_tensor.make_fx(net)(X),
        lambda net: torch.export.export(net, (X,)),
        lambda net: torch.jit.trace(net, (X,)),
    ],
    ids=["make_fx", "export", "jit.trace"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tracer_cannot_bake_a_mask_in(trace):
    """make_fx, torch.export and torch.jit.trace are refused in training mode, and work in eval mode."""
    net = model()
    set_step(net, 0, seed=1)
    with pytest.raises(UnimplementedError, match="eval mode"):
        trace(net)
    trace(net.eval())


def test_vmap_shares_a_mask_only_if_asked():
    """Under torch.vmap all samples would have one mask: refused unless randomness="same"."""
    net = model()
    set_step(net, 0, seed=1)
    batch = torch.ones(3, 40)
    for randomness in ("error", "different"):
        with pytest.raises(UnimplementedError, match='randomness="same"'):
            torch.vmap(net, randomness=randomness)(batch)
    assert torch.equal(*torch.vmap(net, randomness="same")(batch)[:2])


@pytest.mark.parametrize(
    "layer",
    [
        Dropout(0.5),
        samebits.nn.Dropout1d(0.5),
        samebits.nn.AlphaDropout(0.5),
        samebits.nn.FeatureAlphaDropout(0.5),
        samebits.nn.RReLU(),
        samebits.nn.GaussianNoise(1.0),
        samebits.nn.StochasticDepth(0.5),
    ],
)
@pytest.mark.parametrize("size", [5, 1 << 16])
def test_torch_func_differentiates_the_layers(layer, size):
    """torch.func.grad gives the gradient of backward."""
    x = torch.linspace(-1, 1, 2 * size).view(2, size).requires_grad_()
    net = nn.Sequential(layer)
    set_step(net, 0, seed=1)
    (expected,) = torch.autograd.grad(net(x).square().sum(), x)
    set_step(net, 0, seed=1)
    assert torch.equal(torch.func.grad(lambda x: net(x).square().sum())(x.detach()), expected)
