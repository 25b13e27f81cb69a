"""What the parts of the self-check share: the judge of groups, and the clock."""

import time

import pytest
import torch

from samebits.selfcheck.agreement import agree, difference
from samebits.selfcheck.case import Target, equal
from samebits.selfcheck.timing import capture_graph, compare, medians


def test_groups_that_agree_pass():
    """Values of one group are compared with each other, groups are not."""
    assert not list(
        agree({"a": {"x": torch.ones(2), "y": torch.ones(2)}, "b": {"x": [1], "y": [1], "z": [1]}})
    )


@pytest.mark.parametrize(
    "value, expected, told",
    [
        (
            torch.tensor([1.0, 2.0, 0.0]),
            torch.tensor([1.0, 3.0, -0.0]),
            "2 of 3 elements, first [1]: 2.0, not 3.0",
        ),
        (torch.ones(2), torch.ones(3), "torch.float32 (2,), not torch.float32 (3,)"),
        (torch.ones(2), torch.ones(2).double(), "torch.float32 (2,), not torch.float64 (2,)"),
        ([1, torch.zeros(1)], [1, torch.ones(1)], "[1] 1 of 1 elements, first [0]: 0.0, not 1.0"),
        ({"a": "one"}, {"a": "two"}, "['a'] 'one', not 'two'"),
        ([1], [1, 2], "[1], not [1, 2]"),
        ((1,), [2], "[0] 1, not 2"),
    ],
)
def test_a_difference_is_told(value, expected, told):
    """Where two values differ first, and what stands there."""
    assert difference(value, expected) == told
    (line,) = agree({"a": {"the CPU": expected, "the GPU": value}})
    assert line == f"a: the GPU is not the CPU: {told}"


def test_a_group_of_one_shows_nothing():
    """A group in which there is nothing to compare is wrong."""
    assert list(agree({"a": {"the CPU": 1}})) == ["a: there is nothing to compare with the CPU"]


def test_one_element_of_any_stride_is_compared():
    """A tensor of one element may have a stride of 0 and count as contiguous: its bytes are compared all the same."""
    one = torch.tensor([3]).as_strided((1,), (0,))
    assert equal(one, torch.tensor([3])) and not equal(one, torch.tensor([4]))
    assert difference(one, torch.tensor([4])) == "1 of 1 elements, first [0]: 3, not 4"


def test_the_faster_call_is_told():
    """The ratio is theirs over ours; each call is timed in every round."""
    ours, theirs, faster = compare(
        lambda: time.sleep(0.001), lambda: time.sleep(0.01), Target("cpu"), rounds=3
    )
    assert 1e6 <= ours < theirs and faster > 2
    taken = medians({"a": lambda: None, "b": lambda: None}, Target("cpu"), rounds=4)
    assert [len(taken["a"]), len(taken["b"])] == [4, 4]


def test_calls_are_repeated_together():
    """What is captured is called so often by one replay; on a CPU it is a loop."""
    calls = []
    capture_graph(lambda: calls.append(1), 7, "cpu")()
    assert len(calls) == 7
