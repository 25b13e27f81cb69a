"""SGD and AdamW of samebits.rounding: their arithmetic, their random numbers, their state."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import samebits
from rounding_reference import expected, numbers_of
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.rounding import optim
from samebits.rounding.optim import _update

BF16, F32 = torch.bfloat16, torch.float32
each = pytest.mark.parametrize


def gradients(steps, shape, dtype=BF16):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(steps)]


def weights(shape=(1500,), dtype=BF16):
    return torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype))


def trained(make, steps=4, shape=(1500,), dtype=BF16, seed=3):
    """(weight, optimizer) after some steps."""
    samebits.set_random_seed(seed)
    p = weights(shape, dtype)
    optimizer = make([p])
    for grad in gradients(steps, shape, dtype):
        p.grad = grad
        optimizer.step()
    return p.detach(), optimizer


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def key_of(seed, step, name, stream):
    return int_keys.to_tensor(
        int_keys.fold(int_keys.root(seed), "samebits.rounding.optim", step, name, stream)
    )


def rounded(x, step, stream=0):
    """x, a NumPy array, as the weight (or tensor of state) number 0 is rounded at a step, by definition."""
    made = expected(x, BF16, numbers_of(key_of(3, step, 0, stream), x.size, BF16)).astype(np.uint16)
    return torch.from_numpy(made).view(BF16)


def test_adamw_is_its_formula_in_float32():
    """Weights and state have the bits of AdamW's formula in NumPy's float32, rounded by the words of seed, step and number."""
    f = np.float32
    w, m, v = weights().detach(), np.zeros(1500, f), np.zeros(1500, f)
    for step, grad in enumerate(gradients(4, 1500), 1):
        g = grad.float().numpy()
        m = m + (g - m) * f(1 - 0.9)
        v = v * f(0.95) + (g * f(1 - 0.95)) * g
        denominator = np.sqrt(v) * f(1 / math.sqrt(1 - 0.95**step)) + f(1e-6)
        x = w.float().numpy() * f(1 - 1e-2 * 0.1) - (m / denominator) * f(1e-2 / (1 - 0.9**step))
        w = rounded(x, step)
    ours, optimizer = trained(
        lambda p: optim.AdamW(p, lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    )
    (state,) = optimizer.state.values()
    assert same(ours, w)
    assert torch.equal(state["exp_avg"], torch.from_numpy(m))
    assert torch.equal(state["exp_avg_sq"], torch.from_numpy(v))
    assert not same(trained(lambda p: optim.AdamW(p, lr=1e-2), seed=4)[0], ours)  # control: another seed


def test_sgd_is_its_formula_in_float32():
    """So has SGD with momentum, whose buffer in bfloat16 is rounded by a stream of its own."""
    f = np.float32
    w, buffer = weights().detach(), torch.zeros(1500, dtype=BF16)
    for step, grad in enumerate(gradients(4, 1500), 1):
        value = w.float().numpy()
        g = grad.float().numpy() + value * f(0.1)
        moved = g if step == 1 else buffer.float().numpy() * f(0.9) + g * f(1 - 0.2)
        buffer = rounded(moved, step, stream=1)
        w = rounded(value - moved * f(0.05), step)
    ours, optimizer = trained(
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.2, weight_decay=0.1, state_dtype=BF16)
    )
    (state,) = optimizer.state.values()
    assert same(ours, w) and same(state["momentum_buffer"], buffer)


@pytest.mark.slow
@each("cls, dtype, options", [
    (optim.AdamW, BF16, {"amsgrad": True, "maximize": True}),
    (optim.AdamW, BF16, {"amsgrad": True, "state_dtype": BF16}),
    (optim.AdamW, torch.float16, {"weight_decay": 0.3}),
    (optim.SGD, BF16, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (optim.SGD, torch.float16, {"momentum": 0.9, "state_dtype": BF16, "maximize": True}),
])  # fmt: skip
def test_the_kernel_has_the_bits_of_tensor_ops(cls, dtype, options, monkeypatch):
    """What the kernel computes in one pass is what tensor ops give, which other devices and layouts take."""
    one, other = [], []
    for values in (one, other):
        p, optimizer = trained(lambda p: cls(p, **options), dtype=dtype)
        values += [p, *next(iter(optimizer.state.values())).values()]
        monkeypatch.setattr(_update, "_has_kernel_layout", lambda tensors: False)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], weights(dtype=dtype).detach())


@pytest.mark.slow
@each("cls, options", [
    (optim.AdamW, {"amsgrad": True}),
    (optim.AdamW, {"state_dtype": BF16}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (optim.SGD, {}),
])  # fmt: skip
def test_parameters_together_have_the_bits_of_each_alone(cls, options):
    """Small parameters, which one call passes over, and large ones have the bits that each has in an optimizer of its own."""
    sizes = {
        "one": 1,
        "empty": 0,
        "odd": 513,
        "small": 1 << 16,
        "large": (1 << 16) + 1,
        "half": 40,
        "last": 7,
    }

    def trained_as(parts):
        samebits.set_random_seed(5)
        made = {
            name: torch.nn.Parameter(
                torch.linspace(-3, 3, size).to(torch.float16 if name == "half" else BF16)
            )
            for name, size in sizes.items()
        }
        for part in parts:
            optimizer = cls([(name, made[name]) for name in part], **options)
            for _ in range(3):
                for name in part:
                    made[name].grad = torch.full_like(made[name], 0.01)
                optimizer.step()
        return made

    together, alone = trained_as([list(sizes)]), trained_as([[name] for name in sizes])
    assert all(torch.equal(together[name], alone[name]) for name in sizes)
    renamed = cls([("other", torch.nn.Parameter(torch.linspace(-3, 3, 513).to(BF16)))], **options)
    (weight,) = renamed.param_groups[0]["params"]
    for _ in range(3):
        weight.grad = torch.full_like(weight, 0.01)
        renamed.step()
    assert not torch.equal(together["odd"], weight)


@each("threads", [2, 5])
def test_threads_do_not_matter(threads):
    """A weight of several chunks has the same bits with any number of threads."""
    make = lambda p: optim.AdamW(p, lr=1e-2)
    one, _ = trained(make, steps=2, shape=(200_000,))
    torch.set_num_threads(threads)
    assert same(trained(make, steps=2, shape=(200_000,))[0], one)


@pytest.mark.slow
@each("cls, theirs, options", [
    (optim.AdamW, torch.optim.AdamW, {}),
    (optim.AdamW, torch.optim.AdamW, {"amsgrad": True, "maximize": True, "weight_decay": 0.1, "lr": 0.02}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    (optim.SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    (optim.SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
])  # fmt: skip
def test_float32_weights_are_torchs(cls, theirs, options):
    """float32 weights are not rounded: what torch's optimizer gives, but for its order of operations; no seed is needed."""
    ours = trained(lambda p: cls(p, **options), dtype=F32)[0]
    torch.testing.assert_close(
        ours, trained(lambda p: theirs(p, **options), dtype=F32)[0], rtol=2e-6, atol=1e-7
    )
    assert not torch.equal(ours, trained(lambda p: cls(p, **{**options, "lr": 0.5}), dtype=F32)[0])


def test_float32_weights_need_no_seed(python):
    """In a process that nobody has seeded float32 weights are trained, bfloat16 ones are refused and left as they are."""
    out = python(
        "import torch, samebits\nfrom samebits.rounding import optim\n"
        "for dtype in (torch.float32, torch.bfloat16):\n"
        "    p = torch.nn.Parameter(torch.ones(3, dtype=dtype))\n    p.grad = torch.ones_like(p)\n"
        "    o = optim.AdamW([p])\n"
        "    try:\n        o.step()\n        print('stepped')\n"
        "    except samebits.errors.UnseededError as error:\n        print(error, len(o.state), p.tolist())\n"
    ).stdout.splitlines()
    assert out[0] == "stepped" and "AdamW.step()" in out[1] and "set_random_seed" in out[1]
    assert out[1].endswith("0 [1.0, 1.0, 1.0]")


@pytest.mark.slow
def test_updates_far_below_a_step_are_kept_on_average():
    """A hundred updates of 1/50 of a step each move the mean weight by two steps; torch's SGD moves nothing."""
    step = 2.0**-7

    def mean_of(cls):
        samebits.set_random_seed(1)
        p = torch.nn.Parameter(torch.ones(4096, dtype=BF16))
        optimizer = cls([p], lr=step / 50, maximize=True)
        p.grad = torch.ones_like(p)
        for _ in range(100):
            optimizer.step()
        return p.detach().float().mean().item()

    # of a sum of 100 independent roundings, five sigma, in steps
    error = 5 * (100 * 0.02 * 0.98 / 4096) ** 0.5
    assert abs((mean_of(optim.SGD) - 1) / step - 2) < error
    assert mean_of(torch.optim.SGD) == 1.0


def test_parameters_and_steps_have_numbers_of_their_own():
    """Two equal parameters, and one parameter at two steps, are rounded by different numbers; by name where there are names."""
    samebits.set_random_seed(1)

    def one_step(named, steps=1):
        ps = [torch.nn.Parameter(torch.ones(256, dtype=BF16)) for _ in range(2)]
        optimizer = optim.SGD(list(zip(named, ps)) if named else ps, lr=2.0**-8, maximize=True)
        for _ in range(steps):
            for p in ps:
                p.data.fill_(1)
                p.grad = torch.ones_like(p)
            optimizer.step()
        return [p.detach() for p in ps]

    a, b = one_step(None)
    assert not same(a, b) and not same(a, one_step(None, steps=2)[0])
    x, y = one_step(["x", "y"])
    assert not same(x, a) and not same(x, y)
    assert all(map(same, one_step(["y", "x"]), (y, x)))


def resumed(make, through, steps=3):
    """The weight after twice `steps` steps, between which weight and state go through `through` to a new optimizer."""
    samebits.set_random_seed(3)
    p = weights()
    optimizer = make([p])
    for number, grad in enumerate(gradients(2 * steps, 1500)):
        if number == steps:
            q = torch.nn.Parameter(p.detach().clone())
            fresh = make([q])
            fresh.load_state_dict(through(optimizer.state_dict()))
            p, optimizer = q, fresh
        p.grad = grad
        optimizer.step()
    return p.detach()


def without_steps(state_dict):
    for state in state_dict["state"].values():
        state["step"].zero_()
    return state_dict


@each("make", [
    lambda p: optim.AdamW(p, lr=1e-2),
    lambda p: optim.AdamW(p, lr=1e-2, state_dtype=BF16),
    lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
    lambda p: optim.SGD(p, lr=1e-2),
], ids=["adamw", "adamw bf16", "momentum", "sgd"])  # fmt: skip
def test_resuming_gives_the_same_bits(make, tmp_path):
    """From state_dict, copied or saved to a file, training goes on with the same bits; float32 state stays float32."""
    whole, _ = trained(make, steps=6)

    def by_file(state_dict):
        torch.save(state_dict, tmp_path / "state.pt")
        return torch.load(tmp_path / "state.pt", weights_only=True)

    assert same(resumed(make, copy.deepcopy), whole) and same(resumed(make, by_file), whole)
    assert same(resumed(make, lambda state: state), whole)
    assert not same(resumed(make, without_steps), whole)  # control: the steps are forgotten


def test_resuming_in_a_run(tmp_path):
    """A Run that ends early and is entered again with new objects ends with the bits of one that did not."""

    def run(folder, until):
        samebits.set_random_seed(5)
        model = torch.nn.Linear(30, 7).to(BF16)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        with samebits.Run(folder, model=model, optimizer=optimizer) as run:
            for step, _ in run.steps(range(8)):
                loss = model(torch.randn(4, 30).to(BF16)).float().square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step.number == 2:
                    run.commit()
                if step.number == until:
                    break
        return model.weight.detach(), optimizer

    whole, _ = run(tmp_path / "whole", None)
    early, _ = run(tmp_path / "parts", 4)
    parts, optimizer = run(tmp_path / "parts", None)
    assert same(parts, whole) and not same(early, whole)
    assert {v.dtype for s in optimizer.state.values() for k, v in s.items() if k != "step"} == {F32}


def test_a_state_dict_of_torch_can_be_loaded():
    """The state of torch.optim.AdamW is taken over, its dtype and its count of steps too, and ours is taken by torch's."""
    p, theirs = trained(torch.optim.AdamW)
    optimizer = optim.AdamW([weights()])
    optimizer.load_state_dict(theirs.state_dict())
    (state,) = optimizer.state.values()
    assert state["exp_avg"].dtype is BF16 and int(state["step"]) == 4
    optimizer.param_groups[0]["params"][0].grad = gradients(1, 1500)[0]
    optimizer.step()
    assert int(state["step"]) == 5
    torch.optim.AdamW([weights()]).load_state_dict(optimizer.state_dict())


def test_loading_leaves_the_source_alone():
    """An optimizer that loads the state of another has tensors of its own."""
    _, optimizer = trained(optim.AdamW)
    before = {k: v.clone() for k, v in optimizer.state_dict()["state"][0].items()}
    q = weights()
    other = optim.AdamW([q])
    other.load_state_dict(optimizer.state_dict())
    q.grad = gradients(1, 1500)[0]
    other.step()
    assert all(torch.equal(v, before[k]) for k, v in optimizer.state_dict()["state"][0].items())


def test_copies_and_schedulers():
    """Copies, pickled ones too, go on as the original; a scheduler's learning rate and groups of their own count."""
    samebits.set_random_seed(3)
    model = torch.nn.Linear(40, 9).to(BF16)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.0}]
    optimizer = optim.SGD(groups, momentum=0.9, state_dtype=BF16)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    bias = model.bias.detach().clone()
    both = model, optimizer
    for model, optimizer in (both, copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    scheduler.step()
    assert both[1].param_groups[0]["lr"] == 0.25
    assert same(model.weight.detach(), both[0].weight.detach()) and same(model.bias.detach(), bias)
    assert optimizer.state[model.weight]["momentum_buffer"].dtype is BF16


def test_layouts_and_missing_gradients():
    """A weight in channels_last has the bits of a contiguous one; one without gradient is skipped; the closure's loss returned."""
    samebits.set_random_seed(3)
    x = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(1)).to(BF16)
    grad = gradients(1, x.shape)[0]
    plain, last, idle = (
        torch.nn.Parameter(t) for t in (x.clone(), x.to(memory_format=torch.channels_last), x.clone())
    )
    for p in (plain, last):
        optimizer = optim.AdamW([p, idle], lr=1e-2)

        def closure():
            assert torch.is_grad_enabled()
            p.grad = grad.to(memory_format=torch.preserve_format).clone()
            return 7

        assert optimizer.step(closure) == 7
        assert p._version > 0 and idle not in optimizer.state
    assert torch.equal(plain, last) and not last.is_contiguous() and not torch.equal(plain, x)
    assert torch.equal(idle, x)
    empty = torch.nn.Parameter(torch.empty(0, dtype=BF16))
    empty.grad = torch.empty_like(empty)
    optim.AdamW([empty]).step()


def test_compiled_step():
    """Under torch.compile the step runs outside of the graph, with the same bits."""
    whole, _ = trained(lambda p: optim.AdamW(p, lr=1e-2), steps=1)
    samebits.set_random_seed(3)
    p = weights()
    optimizer = optim.AdamW([p], lr=1e-2)
    p.grad = gradients(1, 1500)[0]
    torch.compile(lambda: optimizer.step(), backend="eager")()
    assert same(p.detach(), whole)


@each("make, error, says", [
    (lambda p: optim.SGD(p, lr=torch.tensor(0.1)), InvalidArgumentError, "float"),
    (lambda p: optim.AdamW([{"params": p, "lr": torch.tensor(0.1)}]), InvalidArgumentError, "lr must be a number"),
    (lambda p: optim.AdamW(p, betas=(torch.tensor(0.9), torch.tensor(0.99))), InvalidArgumentError, "betas"),
    (lambda p: optim.AdamW(p, capturable=True), UnimplementedError, "capturable"),
    (lambda p: optim.SGD(p, differentiable=True), UnimplementedError, "differentiable"),
    (lambda p: optim.SGD(p, state_dtype=torch.float16), InvalidArgumentError, "state_dtype"),
    (lambda p: optim.SGD([p[0].detach().double()]), InvalidArgumentError, "float64"),
    (lambda p: optim.SGD(p, nesterov=True), ValueError, "Nesterov"),
    (lambda p: optim.AdamW(p, lr=-1.0), ValueError, "learning rate"),
])  # fmt: skip
def test_refusals(make, error, says):
    """What is not taken is refused where the optimizer is made, and the message names it; the rest as torch refuses it."""
    with pytest.raises(error, match=says):
        make([weights()])
    optim.AdamW([weights()], fused=True, foreach=False)  # taken, and not needed


def test_sparse_gradients_are_refused():
    """A sparse gradient is refused before any parameter is changed."""
    samebits.set_random_seed(1)
    first, table = weights(), torch.nn.Embedding(5, 3, sparse=True, dtype=BF16)
    first.grad = torch.ones_like(first)
    table(torch.tensor([1])).float().sum().backward()
    optimizer = optim.SGD([first, table.weight])
    with pytest.raises(UnimplementedError, match="sparse"):
        optimizer.step()
    assert same(first.detach(), weights().detach())


def _key_on(rank):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from samebits.rounding.optim import _streams

    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    local = torch.zeros(4, 4)
    of = lambda *placements: _streams.keys(
        (1, 2), 3, "w", _streams.shard(DTensor.from_local(local, mesh, placements, run_check=False)), 1
    )
    return of(Replicate(), Shard(0)), of(Replicate(), Replicate()), of(Shard(0), Shard(1))


def test_replicas_of_shards_share_their_numbers(forked):
    """On a mesh of 2 replicas x 2 shards, ranks 0 and 2 hold the same shard and share its key, 0 and 1 do not; without
    shards all ranks share it, as a plain tensor has it, and with shards over both dimensions none do."""
    from samebits.rounding.optim import _streams

    hybrid, replicated, sharded = zip(*(forked(_key_on, rank).value for rank in range(4)), strict=True)
    assert hybrid[0] == hybrid[2] != hybrid[1] == hybrid[3]
    plain = _streams.keys((1, 2), 3, "w", _streams.shard(torch.zeros(4, 4)), 1)
    assert all(keys == plain for keys in replicated)
    assert len({tuple(keys) for keys in sharded}) == 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_gives_new_groups_the_same_state_dtype(copied):
    """A group that is added to a copied optimizer has state of the dtype that the original was made with."""
    made = optim.AdamW([torch.zeros(2, dtype=torch.bfloat16)], state_dtype=torch.bfloat16)
    again = copied(made)
    again.add_param_group({"params": [torch.zeros(3, dtype=torch.bfloat16)]})
    assert [group["state_dtype"] for group in again.param_groups] == ["bfloat16", "bfloat16"]
