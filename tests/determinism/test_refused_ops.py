import _thread
import re
import sys
import time
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import samebits
from formulation_check import assume_verified
from samebits._context import process
from samebits._inspect.user_code import calling_line
from samebits.determinism import _all_replacements as replacements
from samebits.determinism import _warn_once as warn_once
from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._guards import refused_ops
from samebits.errors import UnimplementedError, UnimplementedWarning

X, INDEX, VALUES = torch.zeros(4), torch.tensor([1, 1]), torch.tensor([2.0, 3.0])
PLANE, PLACES = torch.ones(1, 1, 2, 2), torch.tensor([[[[0, 3], [8, 11]]]])


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No alternatives: the ops in question are refused, as an op for which there is none. Nothing was warned of yet."""
    samebits.set_random_seed(0)
    monkeypatch.setattr(replacements, "REPLACEMENTS", ())
    monkeypatch.setattr(process, "notices", {})


def put():
    return X.clone().put_(INDEX, VALUES)


def unpool():
    return torch.nn.functional.max_unpool2d(PLANE, PLACES, 2)


def resize():
    return torch.quantize_per_tensor(X, 1.0, 0, torch.quint8).resize_(9)


@pytest.mark.parametrize(
    ("call", "op", "cure"),
    [
        (put, "`X.clone().put_(INDEX, VALUES)` at LINE calls aten::put_ on CPU", "index_put_"),
        (
            unpool,
            "`torch.nn.functional.max_unpool2d(PLANE, PLACES, 2)` at LINE calls aten::max_unpool2d on CPU",
            "scatter_",
        ),
        (
            resize,
            "`torch.quantize_per_tensor(X, 1.0, 0, torch.quint8).resize_(9)` at LINE calls aten::resize_ on QuantizedCPU",
            "empty_quantized",
        ),
    ],
)
def test_an_op_without_deterministic_implementation_raises_with_the_cure(call, op, cure):
    """Torch's refusal becomes UnimplementedError: the user's call and line, op, device, what to use instead."""
    place = f"{__file__}:{call.__code__.co_firstlineno + 1}"
    with samebits.enable_op_determinism(), pytest.raises(UnimplementedError) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, NotImplementedError) and isinstance(caught.value, RuntimeError)
    assert text.startswith(f"{op.replace('LINE', place)}, which has no deterministic implementation. Use ")
    assert cure in text and "on_unimplemented='warn'" in text


def test_torch_itself_names_neither_line_nor_cure():
    """Negative control: torch's own error for the same call is a RuntimeError without the user's line."""
    torch._C._set_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="put_ does not have") as caught:
            put()
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert not isinstance(caught.value, UnimplementedError) and __file__ not in str(caught.value)


def test_an_unverified_formulation_stays_refused_and_is_named():
    """What no GPU has verified is not installed; the error of a (fake) CUDA tensor says that it is there and how to test it."""
    with assume_verified(()), samebits.enable_op_determinism():
        with pytest.raises(UnimplementedError, match="make gpu.*gpu_evidence"):
            with FakeTensorMode():
                torch.ones(4, device="cuda").histc()
        with pytest.raises(UnimplementedError) as caught:
            put()  # negative control: of a CPU op there is none that waits
    assert "make gpu" not in str(caught.value)


def test_a_sparse_matrix_times_a_dense_one_is_refused_where_torch_does_not_alert(monkeypatch):
    """With the guard of CUDA's kernels on those of the CPU: mm and addmm by a dense matrix raise, sparse by sparse runs."""
    sparse, dense = torch.eye(4).to_sparse(), torch.ones(4, 2)
    products = (lambda: sparse @ dense, lambda: torch.sparse.addmm(dense, sparse, dense))
    with samebits.enable_op_determinism():
        # negative control: a CPU's are not refused
        assert all(product().shape == (4, 2) for product in products)
    monkeypatch.setitem(refused_ops.CURES, "SparseCPU", refused_ops.CURES["SparseCUDA"])
    monkeypatch.setattr(refused_ops, "_WITHOUT_ALERT", ("SparseCPU",))
    with samebits.enable_op_determinism():
        for product in products:
            with pytest.raises(UnimplementedError, match=rf"{__file__}:\d+ calls aten::a?d?d?mm.*to_dense"):
                product()
        assert torch.sparse.mm(sparse, sparse).to_dense().equal(torch.eye(4))


def test_other_errors_of_such_an_op_are_torchs_own():
    """An error that is not about determinism passes unchanged."""
    with samebits.enable_op_determinism(), pytest.raises(Exception, match="int64|Long|long") as caught:
        X.clone().put_(INDEX.float(), VALUES, accumulate=True)
    assert not isinstance(caught.value, UnimplementedError)


def test_a_deterministic_form_of_such_an_op_runs():
    """put_ with accumulate has a deterministic path on the CPU: it is not refused."""
    with samebits.enable_op_determinism():
        assert X.clone().put_(INDEX, VALUES, accumulate=True).tolist() == [0.0, 5.0, 0.0, 0.0]


def test_warn_runs_the_op_and_warns_once():
    """on_unimplemented='warn': one UnimplementedWarning per op at the user's line; the flag is strict again at once."""
    with (
        samebits.enable_op_determinism(on_unimplemented="warn"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        results = [put() for _ in range(3)]
        unpool()
        assert torch.get_deterministic_debug_mode() == 2
    own = [w for w in caught if w.category is UnimplementedWarning]
    assert [(w.filename, w.lineno) for w in own] == [
        (__file__, call.__code__.co_firstlineno + 1) for call in (put, unpool)
    ]
    assert results[0][1] in VALUES
    assert [re.findall(r"aten::\w+", text)[0] for text in warn_once.notices()] == [
        "aten::put_",
        "aten::max_unpool2d",
    ]


def test_the_line_of_a_backward_is_that_which_called_it():
    """An op that autograd runs is placed at the user's line with `.backward()`."""
    seen, overrides = [], KernelOverrides()
    ask = of_torch(
        "def ask(kernel): return lambda *a, **k: (seen.append(calling_line()), kernel(*a, **k))[1]", seen
    )
    overrides.put("aten::threshold_backward", "CPU", ask)
    try:
        out = torch.relu(torch.ones(3, requires_grad=True)).sum()
        out.backward(); line = this_line()  # fmt: skip
    finally:
        overrides.remove()
    assert seen == [line]


def test_the_line_of_a_backward_on_another_thread():
    """On a thread without a frame of the user's, as CUDA's backward has, it is the line that waits for the backward."""
    seen = []

    def hook(grad):
        _thread.start_new_thread(of_torch("def ask(): seen.append(calling_line())", seen), ())
        while not seen:
            time.sleep(0.001)

    x = torch.ones(3, requires_grad=True)
    x.register_hook(hook)
    (2 * x).sum().backward(); line = this_line()  # fmt: skip
    assert seen == [line]


def of_torch(source, seen):
    """A function that stands, for whoever looks at the stack, in a module of torch's."""
    scope = {"seen": seen, "calling_line": calling_line, "__name__": "torch.autograd"}
    exec(source, scope)
    return scope["ask"]


def this_line():
    """`file:line` of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def test_every_op_of_the_list_exists_in_this_torch():
    """No name in the list of refusals is misspelt: each is an aten op of the tested torch (or of a later one)."""
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    later = {"_upsample_lanczos2d_aa_backward"}
    for cures in refused_ops.CURES.values():
        assert {name for name in cures if f"aten::{name}" not in known} <= later


def test_nothing_is_refused_before_the_switch():
    """Negative control: without the switch put_ runs as ever."""
    assert torch.zeros(2).put_(torch.tensor([1]), torch.tensor([4.0])).tolist() == [0.0, 4.0]
    assert not samebits.op_determinism_enabled()
