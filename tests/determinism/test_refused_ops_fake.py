"""Fake CUDA tensors that meet an op which torch refuses: our error with the way out, from every overload that alerts."""

import math
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import samebits
from refused_calls import ARGUMENTS, with_outs
from samebits._context import process
from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._guards import refused_ops
from samebits.errors import UnimplementedError, UnimplementedWarning

ALERTING = {"aten::histc", "aten::histc.out", "aten::max_unpool2d", "aten::max_unpool2d.out", "aten::max_unpool3d",
            "aten::max_unpool3d.out", "aten::median.dim", "aten::median.dim_values", "aten::nanmedian.dim",
            "aten::nanmedian.dim_values"}  # fmt: skip
"""Whose shape functions alert in torch 2.13, by experiment."""
CALLER = with_outs.__code__.co_filename
"""The file whose line calls the overload."""
WORDS = "does not have a deterministic implementation"
LEFT_OUT = {"aten::_ctc_loss_backward.Tensor", "aten::_efficient_attention_backward"}
"""Take what their forward makes; neither has a shape function that alerts."""
OPS = sorted(
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::")
    and refused_ops.cure_of(name, "CUDA")
    and name not in LEFT_OUT
    and "name" not in name
)
LOST = ("CUDA enabled", "support for cuda", "NVIDIA driver", "No CUDA GPUs", "keyword argument 'out")
"""Torch has no shape function and would run the kernel on a GPU (where there is none), or has one without `out`."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    samebits.set_random_seed(0)
    monkeypatch.setattr(process, "notices", {})
    monkeypatch.setattr(verified_on_gpu, "read", list)  # as on a GPU whose formulations nobody has verified


def fake_call(op, device):
    """What the overload gives for fake tensors on the device: "ran", or the error."""
    args = ARGUMENTS[op]("cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [
            torch.empty(a.shape, dtype=a.dtype, device=device) if isinstance(a, torch.Tensor) else a
            for a in args
        ]
        try:
            with_outs(op, args)
        except Exception as error:
            return error
    return "ran"


def test_every_refused_overload_is_tried():
    """Arguments stand for each of the overloads behind the list of refusals, but one without a shape function."""
    assert len(OPS) > 90 and set(OPS) <= set(ARGUMENTS)


def test_which_overloads_alert_without_us():
    """Negative control: under torch's flag alone exactly the ten of the list end in torch's words, naming neither line nor cure."""
    torch._C._set_deterministic_algorithms(True)
    try:
        found = {op: fake_call(op, "cuda") for op in OPS}
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert {op for op, error in found.items() if WORDS in str(error)} == ALERTING
    assert not any(isinstance(error, UnimplementedError) or CALLER in str(error) for error in found.values())


@pytest.mark.parametrize("op", OPS)
def test_a_fake_cuda_tensor_gets_our_error_where_torch_alerts(op):
    """Op, device, the user's line and the cure; an overload of which torch's shape function does not alert is captured."""
    with samebits.enable_op_determinism():
        found = fake_call(op, "cuda")
    if op in ALERTING:
        assert type(found) is UnimplementedError
        text = str(found)
        assert (
            f" at {CALLER}:" in text
            and f" calls {op} on CUDA, which has no deterministic implementation" in text
            and f"Use {refused_ops.cure_of(op, 'CUDA')}." in text
        )
        assert "gpu_evidence.py" in text  # each of them has a formulation that waits for a GPU
    else:
        assert (
            found == "ran"
            or isinstance(found, DynamicOutputShapeException)
            or any(w in str(found) for w in LOST)
        )


def test_what_a_gpu_has_verified_is_not_refused(monkeypatch):
    """With the entries of the data file each of the ten has a formulation, and is captured."""
    monkeypatch.undo()
    samebits.set_random_seed(0)
    with samebits.enable_op_determinism():
        found = {op: fake_call(op, "cuda") for op in sorted(ALERTING)}
    assert not any(isinstance(error, UnimplementedError) or WORDS in str(error) for error in found.values())


@pytest.mark.parametrize("op", sorted(ALERTING))
def test_warn_captures_it_and_warns_once(op):
    """on_unimplemented="warn": one UnimplementedWarning at the user's line, and the op has its result."""
    with (
        warnings.catch_warnings(record=True) as caught,
        samebits.enable_op_determinism(on_unimplemented="warn"),
    ):
        warnings.simplefilter("always")
        results = [fake_call(op, "cuda") for _ in range(2)]
    assert all(found == "ran" or any(w in str(found) for w in LOST) for found in results)
    own = [w for w in caught if w.category is UnimplementedWarning]
    assert len(own) == 1 and own[0].filename == CALLER and op in str(own[0].message)


@pytest.mark.parametrize("op", OPS)
def test_a_fake_cpu_tensor_is_not_refused(op):
    """No overload of the list is refused for a fake CPU tensor, whose kernel is deterministic or ours."""
    with samebits.enable_op_determinism():
        found = fake_call(op, "cpu")
    assert found == "ran" or not isinstance(found, UnimplementedError) and WORDS not in str(found)


def test_a_meta_tensor_is_not_refused():
    """It computes nothing. Negative control: under torch's flag alone its median and its histogram are refused."""
    x = torch.rand(4, 4, device="meta")
    torch._C._set_deterministic_algorithms(True)
    try:
        for refused in (lambda: x.median(0), lambda: x.histc(3)):
            with pytest.raises(RuntimeError, match=WORDS):
                refused()
    finally:
        torch._C._set_deterministic_algorithms(False)
    with samebits.enable_op_determinism():
        assert x.median(0).values.shape == (4,) and x.histc(3).shape == (3,)


def test_an_op_that_only_the_shape_function_refuses_is_captured():
    """torch's shape function for `mode` is that of median and alerts; its kernel does not, so it is captured."""
    with samebits.enable_op_determinism(), FakeTensorMode():
        assert torch.ones(4, 4, device="cuda").mode(0).values.shape == (4,)


def test_integers_have_a_deterministic_histogram():
    """Only a histogram of floating-point numbers is refused: what the arguments decide stays torch's decision."""
    with samebits.enable_op_determinism(), FakeTensorMode():
        x = torch.ones(4, 4, device="cuda", dtype=torch.int32)
        assert x.histc(3).shape == (3,)


def test_the_second_call_is_refused_too():
    """Fake tensors keep results by arguments: neither a call before the switch nor one under "warn" hides the next."""
    with FakeTensorMode():
        x = torch.ones(4, 4, device="cuda")
        x.median(0), x.median(0)
        with samebits.enable_op_determinism(on_unimplemented="warn"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x.median(0)
        with samebits.enable_op_determinism():
            for _ in range(2):
                with pytest.raises(UnimplementedError, match="median.dim on CUDA"):
                    x.median(0)
        x.median(0)  # and what the switch has put in front is gone


def test_what_a_gpu_has_verified_is_captured(monkeypatch):
    """Where a formulation is installed nothing is refused: the graph's op will be ours on the GPU."""
    entry = verified_on_gpu.GpuVerification("aten::median.dim_values", "a GPU", None, "2.13.0", 1.0)
    monkeypatch.setattr(verified_on_gpu, "read", lambda: [entry])
    with samebits.enable_op_determinism(), FakeTensorMode():
        x = torch.ones(4, 4, device="cuda")
        assert x.median(0).values.shape == (4,)
        with pytest.raises(UnimplementedError):
            x.nanmedian(0)


def middle(x):
    return x.median(0).values


def test_make_fx_refuses_at_the_users_line():
    """Captured by make_fx, the line is that of the op; with "warn" the graph has the op."""
    with FakeTensorMode():
        x = torch.ones(4, 4, device="cuda")
        with (
            samebits.enable_op_determinism(),
            pytest.raises(UnimplementedError, match=f"{__file__}:{middle.__code__.co_firstlineno + 1} "),
        ):
            make_fx(middle)(x)
        with samebits.enable_op_determinism(on_unimplemented="warn"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert "aten.median.dim" in make_fx(middle)(x).code


def test_torch_compile_says_our_words():
    """fullgraph=True: Dynamo's error has ours as its cause; without it, Dynamo leaves the op to eager mode, which raises ours."""
    with FakeTensorMode():
        x = torch.ones(4, 4, device="cuda")
        with samebits.enable_op_determinism():
            with pytest.raises(Exception, match="median.dim on CUDA.* Use torch.sort") as caught:
                torch.compile(middle, backend="eager", fullgraph=True)(x)
            assert isinstance(caught.value.__cause__, UnimplementedError)
            with pytest.raises(UnimplementedError, match="median.dim on CUDA"):
                torch.compile(middle, backend="eager")(x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_max_unpool_on_the_cpu_is_compiled(backend):
    """Our CPU kernel is deterministic, so torch's alert for shapes does not stop the capture: the eager bits."""

    def through(x):
        y, i = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        return torch.nn.functional.max_unpool2d(y, i, 2)

    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with samebits.enable_op_determinism():
        assert torch.equal(torch.compile(through, backend=backend, fullgraph=True)(x), through(x))
    assert math.isfinite(float(x.sum()))


def test_nothing_is_left():
    """Off again: torch's alert and the fake tensors' dispatch are those of before, and without the flag nothing is refused."""
    alert, dispatch = torch._prims_common.alert_not_deterministic, FakeTensorMode.dispatch
    with samebits.enable_op_determinism():
        assert FakeTensorMode.dispatch is not dispatch
    assert (torch._prims_common.alert_not_deterministic, FakeTensorMode.dispatch) == (alert, dispatch)
    with FakeTensorMode():
        torch.ones(4, device="cuda").histc()
    assert cuda_loading.computes("aten::histc", cuda_loading.all_formulations())
