"""`nn.TransformerEncoder` across threads and machines: evaluation has the bits of training without dropout."""

import pytest
import torch
from torch import nn

import samebits
from op_testing import over_threads

MASKS = {
    "none": {},
    "causal": {"mask": nn.Transformer.generate_square_subsequent_mask(7)},
    "padding": {"src_key_padding_mask": torch.arange(7) >= torch.tensor([[7], [5], [6]])},
}


def encoder_and_input():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.randn(3, 7, 32)


@pytest.mark.parametrize("across", ("threads", "machines"))
@pytest.mark.parametrize("mask", MASKS)
def test_evaluation_has_the_bits_of_training(across, mask):
    """With a padding mask, which torch would turn into nested tensors, and without; and over threads."""
    encoder, x = encoder_and_input()
    with samebits.enable_op_determinism(across=across):
        trained = encoder(x, **MASKS[mask])
        encoder.eval()
        with torch.no_grad():
            seen, evaluated = over_threads(lambda: encoder(x, **MASKS[mask]))
    assert torch.equal(trained, evaluated) and len(seen) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_fast_path_would_be_seen_and_comes_back():
    """Negative control: nested tensors give other numbers; the flag is as before at the end of the block."""
    encoder, x = encoder_and_input()
    encoder.eval()
    before = torch.backends.mha.get_fastpath_enabled()
    with samebits.enable_op_determinism(across="threads"), torch.no_grad():
        ours = encoder(x, **MASKS["padding"])
        assert not torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(True)
        assert not torch.equal(encoder(x, **MASKS["padding"]), ours)
    assert torch.backends.mha.get_fastpath_enabled() is before is True
