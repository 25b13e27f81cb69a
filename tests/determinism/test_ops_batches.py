"""A row's result does not depend on the other rows of its batch, nor on how many there are: the anchor's bytes at every place.

After NVIDIA/TransformerEngine#2986. Each batch is computed twice, with the anchor in every even row and in every odd one; the rows
between are other numbers.
"""

import pytest
import torch
from torch import nn

import samebits

FEW, ALL = (1, 2, 17, 33), (1, 2, 17, 33, 128, 257, 1024)


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]


class _Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(12, 20, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class _Flash(nn.Module):
    def forward(self, x):
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q * 0.5, q - 0.1, is_causal=True)


LAYERS = {
    "linear": (lambda: nn.Linear(64, 48), (64,)),
    "linear without bias": (lambda: nn.Linear(300, 10, bias=False), (300,)),
    "wide linear": (lambda: nn.Linear(33, 517), (33,)),
    "layer norm": (lambda: nn.LayerNorm(70), (70,)),
    "rms norm": (lambda: nn.RMSNorm(70), (70,)),
    "group norm": (lambda: nn.GroupNorm(3, 6), (6, 7)),
    "batch norm": (lambda: nn.BatchNorm1d(30), (30,)),
    "gelu": (nn.GELU, (37,)),
    "silu": (nn.SiLU, (37,)),
    "softmax": (lambda: nn.Softmax(-1), (10,)),
    "log softmax": (lambda: nn.LogSoftmax(-1), (1000,)),
    "attention": (_Attention, (9, 32)),
    "fused attention": (_Flash, (9, 32)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True), (9, 32)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3, padding=1), (3, 12, 12)),
    "strided convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (4, 11, 9)),
    "convolution 1d": (lambda: nn.Conv1d(3, 5, 4), (3, 33)),
    "mean pool": (lambda: nn.AdaptiveAvgPool2d(1), (3, 7, 7)),
    "gru": (lambda: _Recurrent(nn.GRU), (6, 12)),
    "lstm": (lambda: _Recurrent(nn.LSTM), (6, 12)),
    "convnet": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10), nn.Softmax(-1)),
        ),
        (1, 12, 12),
    ),
}


def bits(x):
    return x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def differing(make, shape, dtype, batches):
    """The batches (and places) at which the anchor's result has other bytes than alone."""
    samebits.set_random_seed(1)
    layer, found = make().eval().to(dtype), []
    with torch.no_grad():
        anchor = torch.randn(1, *shape).to(dtype)
        alone = bits(layer(anchor)[0])
        for batch in batches:
            for parity in range(min(2, batch)):
                rows = torch.randn(batch, *shape).to(dtype)
                rows[parity::2] = anchor
                out = layer(rows)
                found += [(batch, at) for at in range(parity, batch, 2) if bits(out[at]) != alone]
    return found


QUICK = ("linear", "softmax")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LAYERS]
)
def test_a_row_does_not_know_its_neighbours(name, dtype):
    """Each kind of layer, and a whole network in eval mode, gives the anchor's row the same bytes at every place of small batches."""
    make, shape = LAYERS[name]
    with samebits.enable_op_determinism(across="machines"):
        assert differing(make, shape, dtype, FEW) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_nor_in_large_batches(name, dtype):
    """The same at every place of batches of up to 1,024 rows, with 1 and 3 threads."""
    make, shape = LAYERS[name]
    for number in (1, 3):
        torch.set_num_threads(number)
        with samebits.enable_op_determinism(across="machines"):
            assert differing(make, shape, dtype, ALL) == []


def test_without_the_mode_it_does():
    """Negative control: torch's own product gives the anchor other bytes in other batches; that of threads does not."""
    make, shape = LAYERS["linear without bias"]
    assert differing(make, shape, torch.float32, ALL)
    with samebits.enable_op_determinism(across="threads"):
        assert differing(make, shape, torch.float32, ALL) == []


def rows_of_distances(p):
    """Whether rows of 1 to 60 have the distances and slopes of the same rows among 60."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 33), torch.randn(40, 33)

    def some(count):
        rows = x[:count].clone().requires_grad_()
        made = torch.cdist(rows, y, p)
        return made.detach(), torch.autograd.grad(made.sum(), rows)[0]

    return all(torch.equal(a, b[:n]) for n in (1, 5, 25, 26, 31) for a, b in zip(some(n), some(60)))


def rows_of_products():
    """Whether rows of a chain of products do not depend on how many there are, by every function of it."""
    a, *others = (torch.randn(n, m) for n, m in ((100, 20), (20, 50), (50, 3), (3, 70)))
    out = torch.empty(0)
    whole = torch.linalg.multi_dot([a, *others])
    few = [torch.linalg.multi_dot([a[:n].clone(), *others]) for n in (1, 2, 31)]
    torch.linalg.multi_dot([a[:7], *others], out=out)
    few += [out, torch.chain_matmul(a[:3], *others), torch.linalg.multi_dot([a[0], *others])[None]]
    return all(torch.equal(one, whole[: len(one)]) for one in few)


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_distances_and_chains_of_products_do_not_know_how_many_rows_there_are():
    """cdist of every norm with its gradient, multi_dot and chain_matmul; without the mode both follow the number."""
    assert not rows_of_distances(2.0) and not rows_of_products()
    with samebits.enable_op_determinism(across="machines"):
        assert all(map(rows_of_distances, (0.0, 1.0, 2.0, 3.0, float("inf"))))
        assert rows_of_products()
        x, y = (torch.randn(*shape, 4, dtype=torch.float64).requires_grad_() for shape in ((30,), (2, 5)))
        assert torch.autograd.gradcheck(torch.cdist, (x, y))


def test_the_layout_of_vectors_moves_no_bit():
    """inner and tensordot of vectors with gaps are those of vectors without, and `dot`; without the mode they differ."""

    def most(dtype):
        found = []
        for n in (100, 300, 1000, 5000):
            a, b = torch.randn(2, n, generator=torch.Generator().manual_seed(n)).to(dtype)
            gaps = [torch.stack([one] * 3, -1)[:, 0] for one in (a, b)]
            pairs = ((a, b), (gaps[0], b), gaps)
            found.append({f(*pair).item() for pair in pairs for f in (torch.inner, _tensordot)})
        return max(map(len, found))

    dtypes = torch.float32, torch.bfloat16, torch.float16, torch.float64
    assert max(map(most, dtypes)) > 1
    with samebits.enable_op_determinism(across="machines"):
        assert [*map(most, dtypes)] == [1] * 4


def _tensordot(a, b):
    return torch.tensordot(a, b, 1)
