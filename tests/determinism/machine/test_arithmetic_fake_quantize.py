"""Fake quantization under `across="machines"`: torch's kernels are the stated operations, and nets train with it."""

import numpy as np
import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import samebits
from op_testing import numbers, over_threads, printed_elsewhere
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.errors import UnimplementedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Please use quant_min"),
]


@pytest.fixture(autouse=True)
def mode():
    torch.manual_seed(0)
    with samebits.enable_op_determinism(across="machines"):
        yield


def quantized(x, scale, zero, low, high):
    """The definition, one NumPy operation after the other."""
    q = np.rint(x * (np.float32(1) / scale)) + zero
    return (np.clip(q, low, high) - zero).astype(np.float32) * scale


def test_torchs_kernels_are_the_definition():
    """Per tensor, with tensors as parameters, and per channel, bit for bit, at every length; a division (the control) differs."""
    x, scale, zero = numbers((5, 1003), torch.float32, 1) * 40, np.float32(0.0371), 2
    expected = torch.from_numpy(quantized(x.numpy(), scale, zero, -128, 127))
    for length in (1, 3, 8, 15, 16, 17, 1003):
        seen = torch.fake_quantize_per_tensor_affine(x[:, :length].clone(), float(scale), zero, -128, 127)
        assert torch.equal(seen, expected[:, :length])
    parameters = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
    assert torch.equal(torch.fake_quantize_per_tensor_affine(x, *parameters, -128, 127), expected)
    scales = numbers((5,), torch.float32, 2).abs() * 0.1 + 0.01
    zeros = torch.tensor([0, -3, 5, 1, -8], dtype=torch.int32)
    seen = torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -128, 127)
    columns = scales.numpy()[:, None], zeros.numpy()[:, None].astype(np.float32)
    assert torch.equal(seen, torch.from_numpy(quantized(x.numpy(), *columns, -128, 127)))
    halves = (np.arange(1000, dtype=np.float32) + np.float32(0.5)) * scale
    assert not np.array_equal(np.rint(halves / scale), np.rint(halves * (np.float32(1) / scale)))
    with pytest.raises(UnimplementedError, match="zero points of floating point"):
        torch.fake_quantize_per_channel_affine(x, scales, zeros.float(), 0, -128, 127)


def test_a_moving_average_rounds_each_operation():
    """The observed range goes on by c (x - range), rounded at each step; a fused step (the control) is another number."""
    c, differs = np.float32(0.01), 0
    for seed in range(100):
        x, low, high = numbers((50,), torch.float32, seed), -torch.rand(1) * 3, torch.rand(1) * 3
        was, least = low.numpy().copy(), x.min().numpy()
        scale, zero, on = torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1)
        torch.fused_moving_avg_obs_fake_quant(
            x, on, on, low, high, scale, zero, 0.01, 0, 255, -1, False, False
        )
        assert low.numpy() == was + c * (least - was)
        differs += low.numpy() != (np.float64(was) + np.float64(c) * np.float64(least - was)).astype(
            np.float32
        )
    assert differs > 0


OBSERVERS = {
    "min and max": (quantization.MinMaxObserver, quantization.MinMaxObserver, quantization.FakeQuantize),
    "moving average": (
        quantization.MovingAverageMinMaxObserver,
        quantization.MovingAveragePerChannelMinMaxObserver,
        quantization.FakeQuantize,
    ),
    "fused": (
        quantization.MovingAverageMinMaxObserver,
        quantization.PerChannelMinMaxObserver,
        quantization.FusedMovingAvgObsFakeQuantize,
    ),
}


def trained(name):
    """The state of a small net after some steps of quantization-aware training."""
    of_activations, of_weights, fake = OBSERVERS[name]
    by_channel = "PerChannel" in of_weights.__name__
    scheme = torch.per_channel_symmetric if by_channel else torch.per_tensor_symmetric
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    net.qconfig = quantization.QConfig(
        fake.with_args(observer=of_activations, quant_min=0, quant_max=255),
        quantization.FakeQuantize.with_args(
            observer=of_weights, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=scheme
        ),
    )
    net = quantization.prepare_qat(net.train())
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), []
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 5, (16,))
    for _ in range(8):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return [value for key, value in sorted(net.state_dict().items()) if isinstance(value, torch.Tensor)]


ELSEWHERE = """
import sys, warnings; sys.path.insert(0, sys.argv[1]); warnings.simplefilter("ignore")
import samebits, test_arithmetic_fake_quantize as ours
samebits.enable_op_determinism(across="machines")
print(*(ours.of_value(ours.trained(name)) for name in ours.OBSERVERS))
"""


def test_nets_train_with_the_same_bits_over_threads_and_machines():
    """Quantization-aware training by each kind of observer: the loss falls, and all state is equal over threads and with AVX2."""
    digests = []
    for name in OBSERVERS:
        seen, state = over_threads(lambda name=name: trained(name), (1, 2, 3, 5))
        assert len(seen) == 1
        digests.append(str(of_value(state)))
    folder = __file__.rpartition("/")[0]
    assert printed_elsewhere("-c", ELSEWHERE, folder, **AVX2_ENVIRONMENT).split() == digests
