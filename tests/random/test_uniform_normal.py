"""Uniform, normal and Bernoulli numbers and bits: rows, chunks, threads, layouts, dtypes, and what is refused."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import samebits.random as sr
from op_testing import over_threads
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random._cpu import bernoulli_masks, philox, tiles
from samebits.random._draws import uniform_normal

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [getattr(torch, sign + str(size)) for sign in ("int", "uint") for size in (8, 16, 32, 64)]
DRAWS = {
    "uniform": (sr.uniform, FLOATS),
    "normal": (sr.normal, FLOATS),
    "bernoulli": (sr.bernoulli, [*FLOATS, torch.bool, *INTEGERS]),
    "bits": (sr.bits, INTEGERS),
}
KINDS = [(name, dtype) for name, (_, dtypes) in DRAWS.items() for dtype in dtypes]
IN_PLACE = {"uniform": sr.uniform_, "normal": sr.normal_, "bernoulli": sr.bernoulli_}
PIECE = tiles._PIECE


def raw(x):
    return x.contiguous().view(torch.uint8) if x.dim() else x.reshape(1).view(torch.uint8)


def same(a, b):
    return a.shape == b.shape and a.dtype is b.dtype and torch.equal(raw(a), raw(b))


def stream(key, number):
    out = np.empty(number, np.uint32)
    philox.fill_words(*key.tolist(), out)
    return out


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 4), max_size=2),
    st.lists(st.integers(0, 300), min_size=1, max_size=2),
    st.integers(0, 2**64 - 1),
)
def test_a_batch_of_keys_is_each_key_alone(kind, batch, trailing, seed):
    """A row of a batch of keys has the bits that its key draws alone, for every kind of number and any length of row."""
    draw, dtype = DRAWS[kind[0]][0], kind[1]
    keys = sr.split(sr.key(seed), math.prod(batch)).view(*batch, 2)
    drawn = draw(
        keys.view(*batch, *[1] * len(trailing), 2) if batch else keys, *batch, *trailing, dtype=dtype
    )
    rows = keys.view(-1, 2)
    flat = drawn.view(len(rows), *trailing)
    for row, key in zip(flat, rows, strict=True):
        assert same(row, draw(key, trailing, dtype=dtype))


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_long_rows_go_on_where_pieces_end(name, dtype):
    """A row of several chunks is the stream of one key: around each end of a chunk it has what a key with that offset
    draws; an offset that is off by one block gives something else."""
    draw, n = DRAWS[name][0], 2 * PIECE + 37
    long = draw(sr.key(7), n, dtype=dtype)
    width = dtype.itemsize if name == "bits" else 8 if dtype is torch.float64 and name != "bernoulli" else 4
    for start in (0, PIECE - 16, PIECE, 2 * PIECE - 16, 2 * PIECE):
        offset = start * width // 16
        there = torch.tensor([7, offset], dtype=torch.uint64)
        count = min(100, n - start)
        assert same(long[start : start + count], draw(there, count, dtype=dtype))
        there[1] = offset + 1
        assert not same(long[start : start + count], draw(there, count, dtype=dtype))


def test_threads_do_not_matter():
    """1, 2, 3, 4 and 8 threads give the same bits, for long rows and for many."""
    many, long = sr.split(sr.key(1), 5000).view(5000, 1, 2), 5 * PIECE + 3
    x = torch.arange(long).float()
    seen, _ = over_threads(
        lambda: [
            sr.uniform(sr.key(1), long),
            sr.normal(sr.key(2), long),
            sr.bernoulli(sr.key(3), long, p=0.3),
            sr.dropout(sr.key(4), x, 0.3),
            sr.normal(many, 5000, 51),
        ]
    )
    assert len(seen) == 1


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda t: torch.zeros(t.shape[0], 2 * t.shape[1], dtype=t.dtype)[:, ::2],
    "sliced": lambda t: torch.zeros(t.shape[0] + 2, t.shape[1] + 1, dtype=t.dtype)[1:-1, 1:],
    "shifted": lambda t: torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_is_the_functional_form(name, layout):
    """A result of any layout gets what the functional form gives, is returned itself, and nothing beside it is written."""
    for dtype in DRAWS[name][1]:
        result = LAYOUTS[layout](torch.zeros(13, 37, dtype=dtype))
        assert IN_PLACE[name](sr.key(5), result) is result
        assert same(result, DRAWS[name][0](sr.key(5), 13, 37, dtype=dtype))
        if layout == "strided":
            assert not result._base[:, 1::2].any()


def test_in_place_writes_are_seen_by_autograd():
    """Backward refuses a saved tensor that was drawn into since, as it does for torch's own in-place ops."""
    x = torch.ones(3, requires_grad=True)
    kept = torch.ones(3)
    y = (x * kept).sum()
    sr.uniform_(sr.key(1), kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.no_grad():
        sr.normal_(sr.key(1), x)
    assert same(x.detach(), sr.normal(sr.key(1), 3))
    with torch.inference_mode():
        assert same(sr.normal_(sr.key(1), torch.empty(3)), sr.normal(sr.key(1), 3))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 2), ()])
def test_empty_and_scalar_shapes(shape):
    """Shapes with a 0 give empty tensors of that shape, batches of no key too; () gives one number."""
    for name, dtype in KINDS:
        assert DRAWS[name][0](sr.key(1), shape, dtype=dtype).shape == shape
    none = torch.empty(0, 1, 2, dtype=torch.uint64)
    assert sr.uniform(none, 0, 5).shape == (0, 5)
    assert sr.dropout(sr.key(1), torch.ones(shape)).shape == shape


@pytest.mark.slow
def test_bernoulli_is_a_threshold_on_the_words():
    """An element is one where its word + 1 <= p 2**32; for every dtype, and for p as a number or a tensor."""
    key, n = sr.key(3), 2000
    w = stream(key, n).astype(np.float64)
    for p in (0.0, 1e-300, 2.0**-32, 0.25, 0.3, 0.7, 1 - 2.0**-33, 1.0):
        expected = torch.from_numpy(w + 1 <= p * 2.0**32)
        for dtype in DRAWS["bernoulli"][1]:
            drawn = sr.bernoulli(key, n, p=p, dtype=dtype)
            assert drawn.dtype is dtype and torch.equal(drawn.to(torch.int64), expected.to(torch.int64))
            assert same(drawn, sr.bernoulli(key, n, p=torch.tensor(p, dtype=torch.float64), dtype=dtype))
    p = sr.uniform(sr.key(4), 40, 1)
    drawn = sr.bernoulli(key, 40, 50, p=p)
    assert torch.equal(drawn.bool(), torch.from_numpy(w.reshape(40, 50) + 1 <= p.double().numpy() * 2.0**32))
    assert abs(sr.bernoulli(key, 100_000, p=0.3).mean() - 0.3) < 5 * math.sqrt(0.21 / 100_000)


@pytest.mark.parametrize("name", ["uniform", "normal"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(name, half):
    """Half precision is what is computed in float32, rounded to nearest even; cutting digits off would be seen."""
    if name == "normal":
        wide = sr.normal(sr.key(1), 5000, mean=0.1, std=3.0)
        assert same(sr.normal(sr.key(1), 5000, mean=0.1, std=3.0, dtype=half), wide.to(half))
        assert not torch.equal((wide.view(torch.int32) & -65536).view(torch.float32), wide.to(half).float())
    else:
        digits = {torch.float16: 11, torch.bfloat16: 8}[half]
        low, high = torch.tensor([-1.3, 2.6], dtype=half)
        x = (
            torch.from_numpy((stream(sr.key(1), 5000) & np.uint32(2**digits - 1)).astype(np.float64))
            * 2.0**-digits
        )
        scaled = (x * (high - low).double() + low.double()).float().to(half)
        assert same(sr.uniform(sr.key(1), 5000, low=-1.3, high=2.6, dtype=half), scaled)


KEY = sr.key(1)
dropout_of = sys.modules[sr.dropout.__module__]
NAN = float("nan")
REFUSED = [
    (lambda: sr.uniform_(KEY.int(), torch.empty(3)), "uint64 tensor of shape"),
    (lambda: sr.uniform_(KEY[:1], torch.empty(3)), "uint64 tensor of shape"),
    (lambda: sr.uniform_(KEY, [1.0]), "result must be a tensor"),
    (
        lambda: sr.uniform_(KEY, torch.empty(3, dtype=torch.int32)),
        "dtypes float32, float64, float16, bfloat16",
    ),
    (lambda: sr.normal_(KEY, torch.empty(3, dtype=torch.complex64)), "dtypes"),
    (lambda: sr.bernoulli_(KEY, torch.empty(3, dtype=torch.complex64)), "dtypes"),
    (lambda: sr.uniform_(KEY, torch.empty(3, device="meta")), "one device"),
    (lambda: sr.uniform_(KEY, torch.empty(3, requires_grad=True)), r"torch\.no_grad"),
    (lambda: sr.uniform_(sr.split(KEY, 4), torch.empty(3)), "does not broadcast"),
    (lambda: sr.uniform(KEY, -1), "no negative sizes"),
    (lambda: sr.bits(KEY, (2, -1)), "no negative sizes"),
    (lambda: sr.bernoulli(KEY, 2.5), "integers or one sequence"),
    (lambda: sr.uniform(KEY, 3, low=NAN), "low must not be above high"),
    (lambda: sr.uniform(KEY, 3, low=2.0, high=1.0), "low must not be above high"),
    (lambda: sr.uniform(KEY, 3, high=math.inf), "must be finite"),
    (lambda: sr.uniform(KEY, 3, low=-3e38, high=3e38), "must be finite"),
    (lambda: sr.uniform(KEY, 3, high=7e4, dtype=torch.float16), "must be finite"),
    (lambda: sr.normal(KEY, 3, std=-1.0), "std must not be negative"),
    (lambda: sr.normal(KEY, 3, std=NAN), "std must not be negative"),
    (lambda: sr.normal(KEY, 3, dtype=torch.int64), "dtype must be"),
    (lambda: sr.bernoulli(KEY, 3, p=1.1), "0 <= p <= 1, got 1.1"),
    (lambda: sr.bernoulli(KEY, 3, p=-0.1), "0 <= p <= 1"),
    (lambda: sr.bernoulli(KEY, 3, p=NAN), "0 <= p <= 1"),
    (lambda: sr.bernoulli(KEY, 3, p=torch.tensor([0.1, NAN, 0.2])), "p must hold probabilities"),
    (lambda: sr.bernoulli(KEY, 3, p=torch.tensor([0.1, 1.1, 0.2])), "p must hold probabilities"),
    (lambda: sr.bernoulli(KEY, 3, p=torch.rand(2)), "does not broadcast"),
    (lambda: sr.bernoulli(KEY, 3, p="0.5"), "p must be a number or a tensor"),
    (lambda: sr.bernoulli(KEY, 3, dtype=torch.complex64), "dtype must be"),
    (lambda: sr.bits(KEY, 3, dtype=torch.bool), "integer dtype"),
    (lambda: sr.key(-1), "0 <= seed < 2"),
    (lambda: sr.key(2**64), "0 <= seed < 2"),
    (lambda: sr.key(1.5), "integer seed"),
    (lambda: sr.dropout(KEY, torch.ones(3), 1.5), "0 <= p <= 1"),
    (lambda: sr.dropout(KEY, torch.ones(3), NAN), "0 <= p <= 1"),
    (lambda: sr.dropout(KEY, torch.ones(3).int()), "floating tensor"),
    (lambda: sr.dropout(KEY, 3.0), "floating tensor"),
    (lambda: sr.dropout(torch.ones(2), torch.ones(3)), "uint64 tensor of shape"),
    (lambda: sr.dropout(sr.split(KEY, 4), torch.ones(3)), "does not broadcast"),
    (lambda: sr.dropout(KEY, torch.ones(3, device="meta")), "one device"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number):
    """Each wrong argument raises an InvalidArgumentError that names it and what is right."""
    call, named = REFUSED[number]
    with pytest.raises(InvalidArgumentError, match=named):
        call()


def test_nothing_is_written_before_the_error():
    """A refused call leaves its result as it was."""
    result = torch.full((3,), 5.0)
    for call in (
        lambda: sr.uniform_(KEY, result, low=2.0, high=1.0),
        lambda: sr.normal_(KEY, result, std=-1.0),
        lambda: sr.bernoulli_(KEY, result, p=2.0),
        lambda: sr.bernoulli_(KEY, result, p=torch.tensor([0.5, 0.5, 2.0])),
        lambda: sr.dropout(KEY, result, 2.0, inplace=True),
        lambda: sr.normal_(sr.split(KEY, 2), result),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
        assert (result == 5).all()


def test_device_moves_the_result():
    """`device` says where the result is; the key's device is where it is drawn."""
    assert sr.uniform(KEY, 3, device="cpu").device.type == "cpu"
    assert sr.normal(KEY, 3, device="meta").device.type == "meta"


def test_a_default_device_is_not_where_parameters_are_computed():
    """Under a default device without data, draws from a CPU key are what they are without it."""
    plain = sr.uniform(KEY, 3, low=-0.5, high=3.5), sr.dropout(KEY, torch.ones(9), 0.35), sr.fold_in(KEY, 3)
    for cached in (uniform_normal._low_and_span, dropout_of._scale, bernoulli_masks._one_bits):
        cached.cache_clear()
    with torch.device("meta"):
        x = torch.ones(9, device="cpu")
        there = sr.uniform(KEY, 3, low=-0.5, high=3.5), sr.dropout(KEY, x, 0.35), sr.fold_in(KEY, 3)
    assert all(same(a, b) for a, b in zip(plain, there, strict=True))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_refused():
    """What the ops run raises in fake mode; without the check the kernels would write to address 0."""
    sr.uniform(KEY, 3), sr.dropout(KEY, torch.ones(3))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.ones(3))
        draws = (
            lambda: uniform_normal.fill_uniform("uniform", KEY, fake, 0.0, 1.0),
            lambda: uniform_normal.stream(KEY, (2**22,), torch.uint32),
            lambda: dropout_of.run(fake, KEY, 0.5),
        )
        for draw in draws:
            with pytest.raises(UnimplementedError, match="no memory"):
                draw()


def test_no_draw_leaves_a_trace_in_the_next():
    """The sign of a zero mean, and a parameter that is a tensor and changes, count anew in each call."""
    for mean in (0.0, -0.0, 0.0):
        drawn = sr.normal(KEY, 9, mean=mean, std=0.0)
        signs = torch.full((9,), math.copysign(1, mean))
        negative = sr.normal(KEY, 9) < 0  # -0 + 0 is 0, and -0 + -0 is -0
        assert torch.equal(drawn.signbit(), negative & (signs < 0))
    high = torch.tensor(2.0)
    first = sr.uniform(KEY, 9, high=high)
    high.fill_(4.0)
    assert torch.equal(sr.uniform(KEY, 9, high=high), 2 * first)
