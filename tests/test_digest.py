from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import _digest as digest
from samebits._byte_digest import of_bytes


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([float("nan")]), -torch.tensor([float("nan")])),
        (torch.tensor([5.0, 5.0]), torch.tensor([7.0, 7.0])),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16)),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ([1, 2], [2, 1]),
        ([1, [2]], [1, 2]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (None, []),
        ([], {}),
        ({"a": []}, {}),
        (0.1 + 0.2, 0.3),
        (np.float32(1), np.float64(1)),
        (np.zeros(3), np.zeros((3, 1))),
    ],
)
def test_different_bits_have_different_digests(a, b):
    """Order, sign of zero, NaN payload, dtype, shape, type and nesting all count."""
    assert digest.of_value(a) != digest.of_value(b)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.bool, torch.float8_e5m2]
)
def test_layout_does_not_count(dtype):
    """Strided, transposed, sliced and requires-grad views of equal values have equal digests."""
    base = torch.arange(24).reshape(4, 6).to(dtype)
    assert digest.of_value(base.t()) == digest.of_value(base.t().contiguous())
    assert digest.of_value(base[:, ::2]) == digest.of_value(base[:, ::2].clone())
    one = base.reshape(-1)[::2][:1]  # one element with a stride of two
    assert digest.of_value(one) == digest.of_value(one.clone())
    assert digest.of_value(base[0, 0]) == digest.of_value(base[0, 0].clone())


def test_sparse_tensors_are_digested_by_content():
    """Sparse tensors of equal content have equal digests, others not."""
    a = torch.eye(3).to_sparse()
    assert digest.of_value(a) == digest.of_value(torch.eye(3).to_sparse())
    assert digest.of_value(a) != digest.of_value((2 * torch.eye(3)).to_sparse())
    assert digest.of_value(a) != digest.of_value(torch.eye(3))


def test_the_algorithm_is_named():
    """A digest reads `algorithm:hex`."""
    assert of_bytes(b"").startswith("xxh3-128:")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_a_digest_is_a_function_of_the_value(value):
    """The same value has the same digest twice, and below a key the paths alone change."""
    assert digest.of_value(value) == digest.of_value(value)
    assert dict(digest.leaves({"x": value})) == {
        f"x.{path}" if path else "x": number for path, number in digest.leaves(value)
    }


def test_a_walk_gives_containers_before_their_parts_and_stops_at_its_depth():
    """Paths join keys and indices by dots; what lies as deep as `levels` is a leaf, whatever it holds."""
    state = {"a": [1, {"b": 2}], "c": ()}
    seen = [(path, parts is None) for path, _, parts in digest.walk(state)]
    assert seen == [("", False), ("a", False), ("a.0", True), ("a.1", False), ("a.1.b", True), ("c", False)]
    assert [path for path, _, parts in digest.walk(state, levels=1) if parts is None] == ["a", "c"]


@dataclass
class Held:
    value: Any


@pytest.mark.parametrize("around", [Held, lambda one: deque([one]), lambda one: [Held(deque([one], 2))]])
def test_the_middle_of_a_large_tensor_counts_in_a_deque_and_a_dataclass(around: Callable[[Any], Any]) -> None:
    """A change that the repr of the tensor leaves out is a change; equal content has one digest."""
    before, after = torch.zeros(5000), torch.zeros(5000).index_fill(0, torch.tensor([2500]), 1)
    assert digest.leaf(around(before)) != digest.leaf(around(after))
    assert digest.differing({"a": around(before)}, {"a": around(after)}) != []
    assert digest.of_value(around(before)) == digest.of_value(around(before.clone()))
