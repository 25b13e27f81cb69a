"""The CUDA formulations on a GPU: bits over five runs, values against float64, torch's refusal, and that switching off restores."""

import pytest
import torch

from samebits.determinism.cuda_decompositions import REPLACEMENTS
from samebits.selfcheck.parts.switch.check import call, failures, installed, runs_on
from samebits.selfcheck.parts.switch.samples import SAMPLES, Maker
from samebits.determinism.overrides import has_kernel

if not torch.cuda.is_available():
    pytest.skip("no CUDA device: torch.cuda.is_available() is False", allow_module_level=True)

ON_CUDA = [s for s in SAMPLES if runs_on(s, "cuda")]
ids = dict(ids=lambda s: s.name.replace(" ", "_"))


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("sample", ON_CUDA, **ids)
def test_bits_repeat_and_values_are_those_of_float64(sample, large):
    """On the GPU five runs give the same bits, within tolerance of the CPU in float64, small and at full size."""
    assert failures(sample, "cuda", large=large) == []


@pytest.mark.parametrize("sample", ON_CUDA, **ids)
def test_out_and_in_place_forms_work(sample):
    """Every overload that a sample covers runs through the dispatcher on the GPU, `out` forms included."""
    args = sample.make(Maker("cuda", torch.float32))
    with installed("cuda"):
        for op in sample.covers:
            assert all(x.is_cuda for x in call(op, args))


@pytest.mark.parametrize("sample", ON_CUDA, **ids)
def test_torch_refuses_without_the_formulation(sample):
    """Negative control: under the flag alone torch raises; where it no longer does, the skip says so."""
    args = sample.make(Maker("cuda", torch.float32))
    with installed("cuda"):
        call(sample.call, args)
    torch.use_deterministic_algorithms(True)
    try:
        call(sample.call, args)
    except RuntimeError as error:
        assert "deterministic" in str(error)
    else:
        pytest.skip(f"this torch no longer refuses {sample.call}: its own path would do")
    finally:
        torch.use_deterministic_algorithms(False)


def test_some_op_varies_without_the_switch():
    """Negative control: at full size, without the switch, torch's bilinear backward or grid sampler gives other bits again."""
    found = set()
    for sample in SAMPLES:
        if sample.name in ("upsample_bilinear2d_backward down", "grid_sampler_2d_backward mode 0 padding 1"):
            args = sample.make(Maker("cuda", torch.float32, large=True))
            results = [call(sample.call, args)[0] for _ in range(20)]
            if any(not torch.equal(results[0], r) for r in results):
                found.add(sample.name)
    assert found


def test_nearly_every_formulation_stands_before_a_kernel():
    """On a CUDA build the replaced overloads have CUDA kernels, but for a resize that torch has on the CPU only."""
    missing = {r.op for r in REPLACEMENTS if not has_kernel(r.op, "CUDA")}
    assert all("lanczos" in op for op in missing)
