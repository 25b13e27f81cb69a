"""Kernels of torch's that stay: the same bits with AVX2 and AVX-512, at every length and layout."""

import json

import pytest
import torch

import exact_calls
from exact_elementwise import EXACT_ELEMENTWISE
from op_testing import printed_elsewhere
from samebits.determinism._dispatcher import overload
from samebits.determinism._ops.replacements import ELEMENTWISE

pytestmark = pytest.mark.slow

OURS_FOR_COMPLEX_NUMBERS = {"mul.Tensor", "div.Tensor", "reciprocal", "sgn", "addcdiv"}
CAPABILITIES = {"AVX2": ("avx2",), "AVX512": ("avx2", "avx512")}


@pytest.fixture(scope="module")
def played():
    """The digests of all calls, for each vector width that this CPU can play."""
    found = []
    for capability in CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ()):
        printed = printed_elsewhere(exact_calls.__file__, ATEN_CPU_CAPABILITY=capability)
        found.append(json.loads(printed))
    if len(found) < 2:
        pytest.skip("this CPU has one vector width")
    return found


@pytest.mark.slow
def test_exact_ops_have_the_same_bits_with_every_vector_width(played):
    """Every call of the table, in every type, at every length, offset, step and layout: no digest differs."""
    first, *others = (each["exact"] for each in played)
    assert len(first) == len(exact_calls.CALLS) * len(exact_calls.DTYPES)
    assert not [key for key, value in first.items() if value.startswith("raises")]
    for other in others:
        assert [key for key in first if other[key] != first[key]] == []


@pytest.mark.slow
def test_functions_of_torch_do_not(played):
    """Negative control: the same calls of sigmoid, exp2 and others have other digests."""
    first, other = played[0]["moving"], played[1]["moving"]
    differing = {key.split()[0] for key in first if first[key] != other[key]}
    assert differing == set(exact_calls.MOVING)


def test_the_table_names_overloads_of_this_torch_that_are_called_above():
    """Every name is an overload, none is replaced by ours for real numbers, and of each op there is a call."""
    ours = {it.op.removeprefix("aten::") for it in ELEMENTWISE}
    called = {name.split()[0].partition(".")[0] for name in exact_calls.CALLS}
    names = [name for group in EXACT_ELEMENTWISE for name in group.ops]
    assert len(set(names)) == len(names)
    for name in names:
        assert overload(f"aten::{name}")
        assert (name in ours) == (name in OURS_FOR_COMPLEX_NUMBERS)
    same = {"rad2deg": "deg2rad", "rsub": "sub"}
    assert {same.get(op, op) for op in (name.partition(".")[0] for name in names)} <= called
