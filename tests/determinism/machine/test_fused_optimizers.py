"""Fused optimizers: the bits of the single-tensor and foreach implementations, and near torch's own."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn, optim

from samebits.determinism._ops.fused_optimizers import power
from samebits.determinism._ops.replacements import ELEMENTWISE

pytestmark = pytest.mark.slow

CASES = {
    "AdamW": (optim.AdamW, {}),
    "AdamW amsgrad": (optim.AdamW, {"amsgrad": True, "maximize": True}),
    "AdamW without decay": (optim.AdamW, {"weight_decay": 0}),
    "Adam": (optim.Adam, {}),
    "Adam decay": (optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    "SGD": (optim.SGD, {"weight_decay": 0.1}),
    "SGD momentum": (optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "SGD nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adagrad": (optim.Adagrad, {"weight_decay": 0.1, "lr_decay": 0.1}),
}


def trained(case, dtype=torch.float32, channels_last=False, **options):
    """The parameters after four steps of a small model."""
    torch.manual_seed(0)
    optimizer, more = CASES[case]
    model = nn.Sequential(nn.Conv2d(3, 7, 3), nn.GELU(), nn.Flatten(), nn.Linear(63, 3)).to(dtype)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    used = optimizer(model.parameters(), lr=1e-2, **more, **options)
    for _ in range(4):
        used.zero_grad()
        model(torch.randn(2, 3, 5, 5).to(dtype)).float().square().mean().backward()
        used.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("case", CASES)
def test_fused_foreach_and_single_tensor_steps_have_the_same_bits(case, machine_invariant_kernels):
    """Four steps of each implementation end with the same parameters, near those of torch's kernels."""
    torchs = trained(case, fused=True)
    with machine_invariant_kernels(ELEMENTWISE):
        single = trained(case, foreach=False)
        assert torch.equal(trained(case, foreach=True), single)
        assert torch.equal(trained(case, fused=True), single)
    assert torch.allclose(single, torchs, rtol=1e-4, atol=1e-5)


def test_torchs_implementations_differ():
    """Negative control: torch's fused and single-tensor AdamW do not have the same bits."""
    assert not torch.equal(trained("AdamW", fused=True), trained("AdamW", foreach=False))


@pytest.mark.parametrize(
    "options", [{"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"channels_last": True}]
)
def test_other_types_and_layouts_are_near_torchs(options, machine_invariant_kernels):
    """bfloat16, float64 and parameters that are not contiguous take steps near torch's."""
    torchs = trained("AdamW", foreach=False, **options)
    replacements = [it for it in ELEMENTWISE if "_fused" in it.op]
    with machine_invariant_kernels(replacements):
        ours = trained("AdamW", fused=True, **options)
    tolerance = 0.1 if options.get("dtype") == torch.bfloat16 else 1e-4
    assert torch.allclose(ours, torchs, rtol=tolerance, atol=tolerance / 10)


def test_scaled_gradients_and_skipped_steps(machine_invariant_kernels):
    """The scale is divided out of the gradients; a step with infinite gradients changes nothing."""
    x, grad = torch.ones(5), torch.full((5,), 8.0)
    states = [torch.zeros(5), torch.zeros(5)]
    options = {
        "lr": torch.tensor(0.1), "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False,
        "maximize": False, "grad_scale": torch.tensor(4.0),
    }  # fmt: skip

    def step(found):
        tensors = ([x], [grad], [states[0]], [states[1]], [], [torch.tensor(1.0)])
        torch._fused_adam_(*tensors, **options, found_inf=torch.tensor(found))

    with machine_invariant_kernels(ELEMENTWISE):
        step(1.0)
        assert x.tolist() == [1.0] * 5
        assert grad.tolist() == [8.0] * 5
        step(0.0)
        assert grad.tolist() == [2.0] * 5
        assert torch.allclose(x, torch.full((5,), 0.9))


def test_powers_of_betas_are_rounded_correctly():
    """The power that a bias correction needs is the float64 next to the exact one."""
    for base in (0.9, 0.999, 0.5, 0.0, 1.0, 0.98):
        for exponent in (1, 2, 3, 10, 77, 500):
            exact = Fraction(base) ** exponent
            assert power(base, exponent) == exact.numerator / exact.denominator or exact < Fraction(1, 10**20)
    assert math.isclose(power(0.999, 100000), 0.999**100000, rel_tol=1e-12, abs_tol=1e-30)
