"""The codec: what goes in comes out with equal types and bits; what cannot is named."""

import datetime as dt
import enum
import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from call_counts import counted
from samebits.checkpoint._codec import decode, encode
from samebits.checkpoint._prepared_commit import CommitPreparer
from samebits.checkpoint._store import CommitStore
from samebits.errors import RunMismatchError, UnsavableStateError
from store_commits import in_memory, write_commit  # noqa: F401

BITS = {"position": {}, "finished": False, "program": {}, "environment": {}}
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def bytes_of(tensor):
    """The bytes, by a way of their own: into fresh memory element by element, then untyped."""
    fresh = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return bytes(fresh.untyped_storage())


def same_strides(shape, a, b):
    """Gaps and the order of axes count; of an axis of one element, and of nothing, torch and NumPy ignore it."""
    return 0 in shape or all(n < 2 or one == other for n, one, other in zip(shape, a, b, strict=True))


def identical(a, b):
    """Equal types, order, bits, shapes and strides, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        same = (a.dtype, a.shape) == (b.dtype, b.shape)
        return same and same_strides(a.shape, a.stride(), b.stride()) and bytes_of(a) == bytes_of(b)
    if isinstance(a, np.ndarray):
        same = (a.dtype, a.shape, a.flags.fnc) == (b.dtype, b.shape, b.flags.fnc)
        return same and same_strides(a.shape, a.strides, b.strides) and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic) and not isinstance(a, str | bytes):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return identical(a.real, b.real) and identical(a.imag, b.imag)
    if isinstance(a, dict):
        extra = [
            (x.default_factory if isinstance(x, defaultdict) else getattr(x, "__dict__", None))
            for x in (a, b)
        ]
        return extra[0] == extra[1] and identical(list(a.items()), list(b.items()))
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and identical(list(a), list(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


@st.composite
def tensors(draw):
    """Any dtype, 0 to 3 dimensions, random bytes, perhaps transposed, sliced or expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    raw = draw(
        st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize)
    )
    flat = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[: len(raw)]
    flat = flat % 2 if dtype == torch.bool else flat
    tensor = flat.view(dtype).reshape(shape)
    return draw(
        st.sampled_from(
            [tensor, tensor.T if tensor.ndim == 2 else tensor, tensor[..., ::2] if shape else tensor]
        )
    )


@st.composite
def arrays(draw):
    dtype = np.dtype(
        draw(st.sampled_from(["?", "i1", "<u2", "<i8", "<f2", "<f4", ">f8", "<c16", "<M8[us]", "<U3", "S2"]))
    )
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    size = math.prod(shape) * dtype.itemsize
    raw = bytes(
        byte % 2 if dtype.kind in "?bU" else byte for byte in draw(st.binary(min_size=size, max_size=size))
    )
    if dtype.kind == "U":
        raw = np.array(["ab"] * max(1, math.prod(shape)), dtype).tobytes()[:size]
    array = np.frombuffer(raw, dtype).reshape(shape).copy()
    return draw(st.sampled_from([array, np.asfortranarray(array), array[::-1] if array.ndim else array]))


floats = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324])
keys = st.recursive(
    st.text(max_size=4) | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | st.binary(max_size=3),
    lambda inner: st.tuples(inner, inner), max_leaves=3,
)  # fmt: skip
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**300), 2**300), floats, st.complex_numbers(),
    st.text(st.characters(exclude_categories=())), st.binary(), st.binary().map(bytearray), tensors(), arrays(),
    st.sampled_from([torch.float32, torch.Size([2, 0]), torch.device("cuda:1"), torch.device("cpu"), np.float32(-0.0)]),
    st.sampled_from([np.str_("a"), np.str_("\0"), np.str_(""), np.bytes_(b"a\0"), np.bool_(True), np.datetime64("2020-01-01"), np.int8(-3)]),
)  # fmt: skip
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(lambda items: defaultdict(list, items)),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 5)),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(state=states)
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_nesting_comes_back_with_equal_types_and_bits_through_a_commit(state, tmp_path):
    """Any nested state is read back from disk with the types, bits, order and strides it was committed with."""
    folder = tmp_path / uuid4().hex
    with CommitStore(folder) as store:
        write_commit(store, 1, {"state": state}, **BITS)
        _, loaded = CommitStore(folder).newest()
    assert identical({"state": state}, loaded)


def test_a_tuple_key_beside_a_number_keeps_its_items(tmp_path):
    """{0: None, ("", None): None}: the key's first item is not taken for the value of 0."""
    state = {"state": {0: None, ("", None): None, ("a", 1): 2}}
    with CommitStore(tmp_path / "run") as store:
        write_commit(store, 1, state, **BITS)
    assert identical(state, CommitStore(tmp_path / "run").newest()[1])


@pytest.mark.parametrize(("a", "b"), [
    (0.0, -0.0), (1, True), (1, 1.0), ((1,), [1]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (np.float64(1), 1.0),
    (torch.zeros(2), torch.zeros(2).half()), (torch.zeros(2), -torch.zeros(2)), (torch.zeros(0, 2), torch.zeros(2, 0)),
    (np.ones((2, 2)), np.asfortranarray(np.ones((2, 2)))), (torch.ones(2, 2), torch.ones(2, 2).T),
    (defaultdict(list), defaultdict(int)), (deque([1], 2), deque([1], 3)), (bytes(1), bytearray(1)),
])  # fmt: skip
def test_the_comparison_of_these_tests_sees_small_differences(a, b):
    """Negative control: values that differ in type, sign of zero, order, shape or stride are not identical."""
    assert not identical(a, b)
    assert identical(a, decode(*encode(a)))


def test_generator_states_come_back(tmp_path):
    """Python's, NumPy's and torch's generators draw the same after a round trip of their states."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "legacy": np.random.get_state(),
        "pcg": np.random.default_rng(3).bit_generator.state,
        "torch": torch.get_rng_state(),
    }
    drawn = random.random(), np.random.random(), torch.rand(1)
    with CommitStore(tmp_path) as store:
        write_commit(store, 0, state, **BITS)
    _, loaded = CommitStore(tmp_path).newest()
    random.setstate(loaded["python"])
    np.random.set_state(loaded["numpy"])
    torch.set_rng_state(loaded["torch"])
    assert drawn == (random.random(), np.random.random(), torch.rand(1))
    assert identical(loaded, state)


def test_tied_tensors_are_stored_once_and_stay_tied():
    """One memory seen the same way is one tensor in the file and one object after; another view is its own."""
    weight = torch.arange(6.0).view(2, 3)
    tree, found = encode(
        {"a": weight, "b": weight.view(2, 3), "c": weight.T, "d": weight.clone(), "e": weight[:1]}
    )
    assert list(found) == ["a", "c", "d", "e"]
    state = decode(tree, found)
    assert state["a"] is state["b"]
    assert state["c"] is not state["a"]


def test_conjugated_and_negated_views_are_resolved(tmp_path):
    """x and x.conj() share memory and are stored as the two values that they are."""
    x = torch.tensor([1 + 2j])
    with CommitStore(tmp_path) as store:
        write_commit(store, 0, {"x": x, "y": x.conj(), "z": x.conj().imag}, **BITS)
    _, loaded = CommitStore(tmp_path).newest()
    assert (loaded["y"].item(), loaded["z"].item()) == (1 - 2j, -2.0)


def test_channels_last_strides_come_back_with_the_tensor(tmp_path):
    """A channels_last tensor is channels_last after loading, since kernels sum in the order of memory."""
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with CommitStore(tmp_path) as store:
        write_commit(
            store, 0, {"x": images, "y": torch.rand(2, 1, 4, 4).to(memory_format=torch.channels_last)}, **BITS
        )
    _, loaded = CommitStore(tmp_path).newest()
    assert loaded["x"].stride() == images.stride() != images.contiguous().stride()
    assert loaded["x"].equal(images)
    assert loaded["x"].data_ptr() % 64 == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_one_or_no_element_are_saved(dtype, tmp_path):
    """A view of one or no element with an odd stride, which torch calls contiguous, is saved as any other."""
    base = torch.ones(6).to(dtype)
    state = {"one": base[::2][:1], "none": base[::2][:0], "corner": base.view(2, 3)[:1, ::2][:, :1]}
    with CommitStore(tmp_path) as store:
        write_commit(store, 0, state, **BITS)
    _, loaded = CommitStore(tmp_path).newest()
    assert all(bytes_of(loaded[name]) == bytes_of(state[name]) for name in state)


def test_names_that_collide_keep_their_tensors_apart():
    """Paths that read the same, and the name that safetensors reserves, still mean different tensors."""
    state = {
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "__metadata__": torch.tensor(3),
        1: torch.tensor(4),
        "1": torch.tensor(5),
    }
    loaded = decode(*encode(state))
    assert [loaded["a.b"], loaded["a"]["b"], loaded["__metadata__"], loaded[1], loaded["1"]] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_a_module_state_dict_keeps_its_versions():
    """The `_metadata` of a state_dict (module versions) comes back, so load_state_dict does not think it old."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    loaded = decode(json.loads(json.dumps(encode(state)[0])), encode(state)[1])
    assert loaded._metadata == state._metadata


class Callback:
    def state_dict(self):
        return {}


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(("state", "words"), [
    ({"callbacks": [{"fn": len}]}, ['callbacks[0]["fn"] is a function (len)', "load_state_dict"]),
    ({"a": {3: Callback()}}, ["a[3] is an object of type", "Callback", "Save its state_dict()"]),
    ({"a": {("x", 1): int}}, ["a[('x', 1)] is a class (int)"]),
    ({"g": torch.Generator()}, ["g is an object of type torch", "get_state()"]),
    ({"g": np.random.default_rng(1)}, ["bit_generator.state"]),
    ({"g": random.Random(1)}, ["getstate()"]),
    ({"s": torch.eye(2).to_sparse()}, ["s is a torch.sparse_coo tensor", "to_dense()"]),
    ({"m": torch.empty(2, device="meta")}, ["m is a meta tensor"]),
    ({"o": np.array([{}])}, ["o is a NumPy array of dtype object"]),
    ({"d": defaultdict(lambda: 1)}, ['d["default_factory"] is a function']),
    ({"k": {torch.ones(1): 1}}, ["k['<key Tensor>']".replace("'", '"'), "torch.Tensor"]),
    ({"x": object()}, ["x is an object of type builtins.object"]),
])  # fmt: skip
def test_what_cannot_be_saved_is_named_with_its_path_and_a_cure(state, words, tmp_path):
    """An unsavable value raises before anything is written, and the message has its path, kind and cure."""
    with CommitStore(tmp_path) as store:
        with pytest.raises(UnsavableStateError) as caught:
            write_commit(store, 0, state, **BITS)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not list((tmp_path / "commits").iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["quantized", "nested"])
def test_quantized_and_nested_tensors_are_refused(kind):
    """Tensors that are more than their bytes and strides raise UnsavableStateError."""
    make = {
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    }
    with pytest.raises(UnsavableStateError, match=f"x is a {kind} tensor"):
        encode({"x": make[kind]()})


def test_a_state_that_contains_itself_is_refused():
    """A cycle ends in UnsavableStateError, not in a stack overflow."""
    state = {"a": []}
    state["a"].append(state)
    with pytest.raises(UnsavableStateError, match="contains itself"):
        encode(state)


def node(level, up=None):
    own = {"up": up, "kids": []}
    own["kids"] += [node(level - 1, own) for _ in range(2 * (level > 0))]
    return own


def test_a_tree_that_knows_its_parents_is_refused_at_once():
    """It has more paths than memory has room for. The control: without the way up, a tree of as many nodes is saved."""
    facts = {"step": 1, "position": {}, "finished": False, "program": {}, "environment": {}}
    with pytest.raises(UnsavableStateError, match="contains itself"):
        counted(partial(CommitPreparer().prepare, {"root": node(4)}, **facts), most=2_000_000)
    tree = [[[1.0, "a"] for _ in range(8)] for _ in range(4)]
    assert CommitPreparer().prepare({"root": tree}, **facts).nbytes > 100


def test_a_view_that_torch_cannot_copy_is_refused(tmp_path):
    """A transposed int4 tensor raises UnsavableStateError; the contiguous one is saved."""
    packed = torch.arange(6, dtype=torch.uint8).view(torch.int4).view(2, 3)
    with CommitStore(tmp_path) as store:
        write_commit(store, 0, {"x": packed}, **BITS)
        with pytest.raises(UnsavableStateError, match="cannot copy"):
            write_commit(store, 1, {"x": packed.T}, **BITS)


class Phase(enum.Enum):
    """An enum of a program."""

    FIRST, SECOND = 1, print


CONSTANTS = {
    "dates": [
        dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC),
        dt.date(2020, 1, 2),
        dt.time(3),
        dt.timedelta(-3, 5),
    ],
    "numbers": (Fraction(2, 3), Decimal("sNaN"), range(1, 9, 2), slice(None, 2), UUID(int=7)),
    "members": {Phase.FIRST: Path("a/b"), (Path("c"), 1): Phase.SECOND},
}


def test_constants_come_back():
    """Dates, fractions, paths, members of enums and the like are the same values again, as keys too."""
    found = decode(*encode(CONSTANTS))
    assert repr(found) == repr(CONSTANTS)
    assert [*found["members"]][0] is Phase.FIRST and found["members"][Path("c"), 1] is Phase.SECOND


@pytest.mark.parametrize(
    "parts", [["Fraction", "1e999999999"], ["Fraction", 1, 0], ["Decimal", "x"], ["range", 0, 1, 0], ["Path", 1],
              ["datetime", "x"], ["timedelta", 10**10], ["Run", 1], ["slice"]]
)  # fmt: skip
def test_forged_constants_are_errors(parts):
    """Other parts than those of a constant are a KeyError, TypeError or ValueError at once, and make no number."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode({"constant": parts}, {})


def test_a_member_of_an_unknown_enum_is_named():
    """A commit with a member that the program does not have says which one; a class that is no enum is none."""
    for name in (f"{__name__}:Phase", "json:JSONDecoder", "nowhere:Phase"):
        with pytest.raises(RunMismatchError, match="no such enum"):
            decode({"constant": ["enum", name, "THIRD"]}, {})
