import pytest
import torch

from lab.catalogue.battery import read
from samebits.errors import InvalidArgumentError


def run(case):
    return next(iter(case.build()))()


def test_a_line_is_a_case_for_each_dtype_and_layout():
    """`name | options | call | inputs`: the options name dtypes, layouts and runs; the call gets the inputs."""
    found = list(
        read("[sums]\nadd | f32 f64 strided x30 | (x + y).sum() | x = normal(40); y = positive(40)\n")
    )
    layouts = ("float32", "float32 strided", "float64", "float64 strided")
    assert [one.full_name for one in found] == [f"sums: add [{layout}]" for layout in layouts]
    assert {one.repeats for one in found} == {30} and {one.group for one in found} == {"sums"}
    assert (
        run(found[0]) == run(found[1])
        and run(found[0]).dtype == torch.float32
        and run(found[2]).dtype == torch.float64
    )


def test_inputs_of_the_group_are_passed_in_the_order_of_the_call():
    """A line binds its inputs over those of its group, which the next group does not see; gradients are in the order of the call."""
    text = "N = 3\n[a]\nx = normal(N)\ny = normal(4)\nmul | f32 grad | y[:N] * x\nown | f32 | x | x = normal(5)\n"
    product, own = read(text)
    outputs, (by_y, by_x) = run(product)
    assert outputs.shape == (3,) and by_y.shape == (4,) and by_x.shape == (3,)
    assert run(own).shape == (5,)
    with pytest.raises(InvalidArgumentError, match="line 8"):
        list(read(f"{text}[b]\nneg | f32 | -z | z = mapped(torch.neg, x)\n"))


def test_indented_lines_are_written_out_for_each_value():
    """`for a,b in 1,2 3,4` stands before lines with {a} and {b}, each of which gives all its cases before the next."""
    text = "[g]\nfor a,b in 1,2 3,4\n    one {a} | f32 | x.sum() | x = normal({a}, {b})\n    two {b} | f32 | torch.ones({b})\nafter | f32 | torch.ones(1)\n"
    found = list(read(text))
    assert [one.name.split(" [")[0] for one in found] == ["one 1", "one 3", "two 2", "two 4", "after"]
    assert run(found[3]).shape == (4,)


def test_a_layer_is_run_on_its_input_with_all_gradients():
    """`layer`: the call makes a module; its outputs, and the gradients of its input and parameters."""
    (found,) = read("[g]\nlinear | f64 layer | nn.Linear(3, 2) | x = normal(5, 3)\n")
    outputs, gradients = run(found)
    assert outputs.shape == (5, 2) and outputs.dtype == torch.float64
    assert [tuple(one.shape) for one in gradients] == [(5, 3), (2, 3), (2,)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sum | x.sum()", "not enough values"),
        ("sum | grad | x.sum()", "names no dtype"),
        ("sum | f32 f8 | x.sum()", "f8"),
        ("sum | f32 | x.sum(", "SyntaxError"),
        ("sum | f32 | x.sum() | y = normal(4)", "does not use y"),
        ("sum | f32 | x.sum() | x = norml(4)", "norml"),
    ],
)
def test_a_line_that_is_no_case_is_named(line, why):
    """Negative control: a line with a fault is refused with its number; the line before it is fine."""
    text = f"[g]\nx = normal(3)\nfine | f32 | x.sum()\n{line}\n"
    with pytest.raises(InvalidArgumentError, match=f"line 4.*{why}"):
        list(read(text))
