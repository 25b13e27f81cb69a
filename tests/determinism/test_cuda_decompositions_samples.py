"""The CUDA formulations on the CPU: their names, and no op that torch refuses; values, bits, forms: tests/gpu/test_switch.py."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from formulation_check import disable_determinism, error, install_formulations, reference, runs_on
from formulation_samples import SAMPLES, Maker
from samebits.determinism import _reviewed_schemas as reviewed_schemas
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._dispatcher import overload
from samebits.determinism._kernels.indexed_writes import write_in_order

BY_OP = {r.op: r for r in REPLACEMENTS}
ON_CPU = [s for s in SAMPLES if runs_on(s, "cpu")]
ids = dict(ids=lambda s: s.name.replace(" ", "_"))


def refuse(*args, **kwargs):
    raise AssertionError("torch's kernel was called for arguments that torch refuses")


class RefusedOnCuda(TorchDispatchMode):
    """Raises where torch would on CUDA, also for what a formulation calls inside."""

    NAMES = {r.op.split(".")[0] for r in REPLACEMENTS}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        exact = (name == "aten::bincount" and (len(args) < 2 or args[1] is None)) or (
            name.startswith("aten::cumsum") and not args[0].is_floating_point()
        )
        if name in self.NAMES and not exact:
            raise AssertionError(f"{func.name()} is refused on CUDA")
        return func(*args, **kwargs)


def test_every_replaced_overload_has_a_sample_and_a_right_name():
    """No replacement is without a sample, none is for the CPU, and every overload exists in this torch."""
    covered = {op for sample in SAMPLES for op in sample.covers}
    assert {r.op for r in REPLACEMENTS} == covered
    gone = {r.op for r in REPLACEMENTS if not reviewed_schemas.exists(r.op)}
    assert all("lanczos" in op for op in gone) and not (gone and torch.__version__ >= "2.13")
    elsewhere = {"cudnn_grid_sampler", *(s.name for s in SAMPLES if gone & {*s.covers})}
    assert {s.name for s in SAMPLES} - {s.name for s in ON_CPU} == elsewhere
    assert all(r.device == "CUDA" and (r.op in gone or overload(r.op).name() == r.op) for r in REPLACEMENTS)


def test_cudnns_sampler_is_the_bilinear_one():
    """cuDNN's overload, called by itself, gives the gradients of torch's sampler with aligned corners."""
    sample = next(s for s in SAMPLES if "cudnn" in s.name)
    args = sample.make(Maker())
    got = BY_OP[sample.call].make(refuse)(*args)
    assert error(list(got), reference(sample, args)) < 1e-12


@pytest.mark.parametrize("sample", SAMPLES, **ids)
def test_no_formulation_calls_an_op_that_is_refused_on_cuda(sample):
    """Neither torch's kernel nor any refused op is called for the arguments that torch refuses."""
    replacement = BY_OP[sample.covers[0]]
    args = sample.make(Maker())
    outs = {}
    if sample.call != replacement.op:
        outs = dict(values=args[0].new_empty(0), indices=torch.empty(0, dtype=torch.int64))
    with RefusedOnCuda():
        replacement.make(refuse)(*args, **outs)


READS_VALUES = {"histc", "bincount with weights"}
"""Decide by values, which a tensor without memory does not have."""


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.name not in READS_VALUES], **ids)
def test_no_formulation_leaves_a_tensor_on_another_device(sample):
    """Called with tensors of the meta device, where no other is taken, each form returns tensors of that device."""
    for dtype in sample.dtypes:
        made = sample.make(Maker(dtype=dtype))
        args = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in made]
        for op in (op for op in sample.covers if reviewed_schemas.exists(op)):
            outs = {
                a.name: args[0].new_empty(0, dtype=torch.int64 if a.name == "indices" else None)
                for a in overload(op)._schema.arguments
                if a.is_out
            }
            found = BY_OP[op].make(refuse)(*args, **outs)
            found = found if isinstance(found, (tuple, list)) else [found]
            assert {x.device.type for x in found if x is not None} == {"meta"}


def test_a_formulation_that_calls_a_refused_op_is_caught():
    """Negative control: `put_`, a weighted bincount and a float cumsum are caught; their exact forms pass."""
    x, i = torch.zeros(4), torch.tensor([1, 1])
    with RefusedOnCuda():
        for call_refused in (lambda: x.put_(i, x[:2]), lambda: torch.bincount(i, x[:2]), lambda: x.cumsum(0)):
            with pytest.raises(AssertionError, match="refused on CUDA"):
                call_refused()
        torch.bincount(i), i.cumsum(0)


@pytest.mark.parametrize(
    "op, args",
    [
        ("aten::bincount", (torch.tensor([1, 2, 2]), None, 5)),
        ("aten::cumsum", (torch.arange(5), 0)),
        ("aten::histc", (torch.arange(5), 3, 0, 4)),
        ("aten::scatter_reduce.two", (torch.zeros(3), 0, torch.tensor([1, 1]), torch.ones(2), "sum")),
        ("aten::nll_loss2d_forward", (torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1).long(), None, 0, -100)),
    ],
)
def test_arguments_that_torch_takes_go_to_torchs_kernel(op, args):
    """What torch does not refuse is passed on untouched."""
    seen = []
    BY_OP[op].make(lambda *a, **k: seen.append(a))(*args)
    assert len(seen) == 1 and all(a is b for a, b in zip(seen[0], args))


def test_put_on_cuda_keeps_the_order_too():
    """The `index_put_` that CUDA gets lets the last write win, as the `scatter_` of the CPU does."""
    was = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True)
    try:
        flat, index = torch.zeros(7), torch.randint(7, (4000,))
        source = torch.arange(4000.0)
        write_in_order(flat, index, source, False)
        assert all(flat[i] == source[index == i][-1] for i in range(7))
    finally:
        torch._C._set_deterministic_algorithms(was)


def test_autograd_reaches_the_formulations():
    """gradcheck passes through `interpolate`, `grid_sample`, pools, pads and `ctc_loss` with the formulations installed."""
    F = torch.nn.functional
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64, generator=gen, requires_grad=True)
    grid = (torch.rand(1, 3, 3, 2, dtype=torch.float64, generator=gen) * 1.6 - 0.8).requires_grad_()
    target, lengths = torch.tensor([[1, 2, 2]]), (torch.tensor([7]), torch.tensor([3]))
    log_probs = torch.randn(7, 1, 4, dtype=torch.float64, generator=gen, requires_grad=True)
    functions = [
        (lambda t: F.interpolate(t, scale_factor=1.7, mode="bilinear"), (x,)),
        (lambda t: F.interpolate(t, size=(7, 3), mode="bicubic", align_corners=True), (x,)),
        (lambda t: F.interpolate(t, size=(2, 3), mode="bilinear", antialias=True), (x,)),
        (lambda t: F.adaptive_avg_pool2d(t, (3, 2)), (x,)),
        (lambda t: F.pad(t, (2, 1, 1, 3), mode="reflect"), (x,)),
        (lambda t, g: F.grid_sample(t, g, align_corners=False), (x, grid)),
        (lambda t: F.ctc_loss(t.log_softmax(2), target, *lengths), (log_probs,)),
        (lambda t: t.cumsum(3), (x,)),
        (lambda t: t.median(3).values, (x,)),
    ]
    with install_formulations("cpu"):
        for function, inputs in functions:
            assert torch.autograd.gradcheck(function, inputs)


def test_nothing_is_left_installed():
    """After the check, torch's kernels are back: a float cumsum is torch's own again."""
    x = torch.randn(1000)
    with disable_determinism():
        before = x.cumsum(0)
        with install_formulations("cpu"):
            inside = x.cumsum(0)
        assert torch.equal(x.cumsum(0), before) and not torch.equal(inside, before)
