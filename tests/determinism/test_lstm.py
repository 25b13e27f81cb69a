"""LSTM layers: the same bits at any thread count."""

import pytest
import torch

from op_testing import THREADS, replaced
from samebits.determinism._kernels import lstm


def results(options):
    """How many different results a layer's output and its weights' gradients have over thread counts."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(**options)
    x = torch.randn(50, 32, options["input_size"])
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        y, (h, c) = layer(x)
        gradients = torch.autograd.grad((y.sin() + h.sum() * c.sum() * 1e-3).sum(), list(layer.parameters()))
        found.append([y, h, c, *gradients])
    return max(
        sum(not any(torch.equal(a, b) for b in same[:i]) for i, a in enumerate(same)) for same in zip(*found)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"input_size": 64, "hidden_size": 128, "num_layers": 2, "batch_first": True},
        {"input_size": 32, "hidden_size": 48, "bidirectional": True},
    ],
)
def test_an_lstm_has_the_same_bits_at_any_thread_count(options):
    """Output and gradients have several results without the replacement (AVX-512), and one with it."""
    without = results(options)
    with replaced(lstm):
        assert results(options) == 1
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert without > 1
