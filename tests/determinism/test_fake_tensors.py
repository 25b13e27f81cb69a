"""An in-place op of a tensor with data and one on "meta" raises under the switch; torch leaves the tensor as it is."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import samebits
from samebits.errors import InvalidArgumentError

AT = torch.tensor([2, 0, 1])
SILENT = {
    "add_": lambda x, m: x.add_(m),
    "iadd": lambda x, m: x.__iadd__(m),
    "mul_": lambda x, m: x.mul_(m),
    "div_": lambda x, m: x.div_(m),
    "logical_xor_": lambda x, m: x.logical_xor_(m),
    "masked_fill_": lambda x, m: x.masked_fill_(m.bool(), 2.0),
    "masked_scatter_": lambda x, m: x.masked_scatter_(x.bool(), m),
    "index_put_": lambda x, m: x.index_put_((AT,), m),
    "index_reduce_": lambda x, m: x.index_reduce_(0, AT, m, "amax"),
    "scatter_": lambda x, m: x.scatter_(0, AT, m),
    "foreach_add_": lambda x, m: torch._foreach_add_([x], [m]),
}


@pytest.mark.parametrize("name", SILENT)
def test_an_operand_on_meta_is_an_error_under_the_switch(name):
    """The error has the line, the op and the cure; the tensor is as it was. The control: torch says nothing."""
    x, m = torch.ones(3), torch.ones(3, device="meta")
    SILENT[name](x, m)
    assert x.tolist() == [1, 1, 1]
    with (
        samebits.enable_op_determinism(),
        pytest.raises(InvalidArgumentError, match=r"fake_tensors\.py") as error,
    ):
        SILENT[name](x, m)
    assert "'meta', without data" in str(error.value) and x.tolist() == [1, 1, 1]
    SILENT[name](x, m)  # the switch has left no trace


SAMPLES = """
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
import samebits

samebits.enable_op_determinism()
called = 0
for op in op_db:
    if op.inplace_variant is None or torch.float32 not in op.dtypes:
        continue
    for sample in op.sample_inputs("cpu", torch.float32):
        given = sample.args, sample.kwargs
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(given)):
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda one: one.to("meta"), given)
            called += 1
            try:
                op.inplace_variant(sample.input.detach().clone(), *args, **kwargs)
            except Exception:
                break
            print(op.name)
            break
print(called > 50)
"""


@pytest.mark.slow
def test_no_in_place_op_of_torch_takes_an_operand_on_meta():
    """Torch's own samples of all ops with an in-place form: `resize_as_` alone returns, which reads the shape."""
    # torch sets flags for good
    done = subprocess.run([sys.executable, "-c", SAMPLES], capture_output=True, text=True)
    assert done.stdout.split() == ["resize_as_", "True"], done.stderr


def step(x, y):
    return x.clone().add_(y).mul_(2.0).masked_fill_(y > 0, 3.0)


def test_tensors_on_meta_and_fake_ones_go_on_as_before():
    """Two on meta, FakeTensorMode, make_fx and torch.compile: the results are those of the calls without them."""
    x, y = torch.ones(3), torch.tensor([-1.0, 0.0, 1.0])
    expected = step(x, y)
    for switch in (True, False):  # the second time without the kernels that the first had
        with samebits.enable_op_determinism(switch):
            assert step(x.to("meta"), y.to("meta")).shape == (3,)
            with FakeTensorMode() as mode:
                assert step(mode.from_tensor(x), mode.from_tensor(y)).shape == (3,)
            for kind in ("real", "fake", "symbolic"):
                assert torch.equal(make_fx(step, tracing_mode=kind)(x, y)(x, y), expected)
            torch._dynamo.reset()
            assert torch.equal(torch.compile(step, backend="aot_eager")(x, y), expected)
