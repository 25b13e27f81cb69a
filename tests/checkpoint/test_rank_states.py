"""What a commit of several ranks holds, without processes: every rank gets its own state back, and shared parts come once."""

import copy
import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import _digest as digest
from samebits.checkpoint._codec import decode, encode
from samebits.checkpoint._rank_states import EncodedState, join_states, pack, rank_state, unpack
from samebits.errors import CorruptCommitError, RunMismatchError


def committed(states):
    """As rank 0 puts it together from what the others send, through the codec of commits."""
    encoded = [EncodedState.of(state) for state in states]
    parts = [unpack(pack(one.difference(encoded[0].outline()))) for one in encoded[1:]]
    return decode(*encode(join_states(states[0], parts)))


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0, float("inf")]), st.text(max_size=2),
    st.builds(lambda n: torch.arange(float(n)), st.integers(0, 3)),
    st.builds(lambda n: torch.full((2, 3), n, dtype=torch.bfloat16), st.integers(0, 1)),
    st.builds(lambda n: torch.arange(6.0).reshape(2, 3).T + n, st.integers(0, 1)),
    st.builds(lambda n: np.arange(n), st.integers(0, 2)), st.builds(lambda n: (n, {n}), st.integers(0, 2)),
)  # fmt: skip
states = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.integers(0, 2), inner, max_size=3)), max_leaves=6),
    max_size=3,
)  # fmt: skip


@given(st.lists(states, min_size=2, max_size=4))
def test_every_rank_gets_its_own_state_back(given_states):
    """Whatever the states of the ranks are, each comes back with equal bits, types and strides."""
    saved = committed(given_states)
    for rank, state in enumerate(given_states):
        got = rank_state(saved, rank, len(given_states), "here")
        assert EncodedState.of(got).outline() == EncodedState.of(state).outline()
        assert digest.of_value(got) == digest.of_value(state)


def test_only_what_differs_is_in_a_part():
    """One differing tensor and one differing number: the part has that tensor, and that number's place in the tree."""
    first = {
        "model": OrderedDict(w=torch.ones(1000), mean=torch.zeros(3)),
        "state": {"n": 1, "deep": [1, {"x": 2}]},
    }
    other = copy.deepcopy(first)
    other["model"]["mean"][1] = -0.0
    other["state"]["deep"][1]["x"] = 2.0
    part = EncodedState.of(other).difference(EncodedState.of(first).outline())
    assert list(part["tensors"]) == ["model.mean"]
    ((_, node),) = json.loads(part["nodes"])
    assert node == 2.0 and type(node) is float
    same = EncodedState.of(first).difference(EncodedState.of(copy.deepcopy(first)).outline())
    assert same == {"nodes": "[]", "tensors": {}}
    assert (
        EncodedState.of(first).digest()
        == EncodedState.of(copy.deepcopy(first)).digest()
        != EncodedState.of(other).digest()
    )


def test_parts_that_do_not_fit_are_told():
    """A number of ranks that is not the commit's, and a part that leads nowhere, are errors that say so."""
    state = {"a": torch.ones(2)}
    saved = committed([state, state, state])
    with pytest.raises(RunMismatchError, match="made by 3 processes, and this is 4 processes"):
        rank_state(saved, 0, 4, "here")
    with pytest.raises(RunMismatchError, match="one process"):
        rank_state(state, 0, 3, "here")
    for nodes in ('[[["dict",7,"x"],1]]', '[[[],{"tensor":"gone"}]]', '[[["dict"]]]'):
        saved["ranks"][1]["nodes"] = nodes
        with pytest.raises(CorruptCommitError, match="rank 2"):
            rank_state(saved, 2, 3, "here")
        assert rank_state(saved, 1, 3, "here").keys() == {"a"}
