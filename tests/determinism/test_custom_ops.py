import uuid
import warnings

import pytest
import torch

import samebits
from samebits._context import process
from samebits.determinism import _warn_once as warn_once
from samebits.determinism._guards import custom_ops
from samebits.errors import (
    InvalidArgumentError,
    UndeclaredOpWarning,
    UnimplementedError,
    UnimplementedWarning,
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    samebits.set_random_seed(0)
    monkeypatch.setattr(process, "notices", {})
    monkeypatch.setattr(custom_ops, "_declared", {})


def by_custom_op(name):
    @torch.library.custom_op(name, mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_autograd(lambda ctx, grad: grad * 2)
    return double


LIBRARIES = []
"""Kept: torch 2.11's export looks at every op that there ever was, and fails at one whose library is gone."""


def by_library(key):
    def define(name):
        namespace, _, short = name.partition("::")
        library = torch.library.Library(namespace, "DEF")
        library.define(f"{short}(Tensor x) -> Tensor")
        library.impl(short, lambda x: x * 2, key)
        op = getattr(getattr(torch.ops, namespace), short)
        LIBRARIES.append(library)
        return lambda x: op(x)

    return define


def by_functions(name):
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu")(lambda x: x * 2)
    namespace, _, short = name.partition("::")
    return getattr(getattr(torch.ops, namespace), short)


WAYS = [by_custom_op, by_functions, by_library("CPU"), by_library("CompositeImplicitAutograd")]
X = torch.ones(2)


def new_name():
    return f"mine{uuid.uuid4().hex}::double"


def caught_from(call, times=3):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [call(X).tolist() for _ in range(times)]
    assert results == [[2.0, 2.0]] * times
    return [w for w in caught if issubclass(w.category, (UndeclaredOpWarning, UnimplementedWarning))]


@pytest.mark.parametrize("define", WAYS)
@pytest.mark.parametrize("before", [True, False])
def test_an_undeclared_op_warns_once_and_is_named(define, before):
    """An undeclared op, registered before the switch or under it, warns at its first call and is kept for the record."""
    name = new_name()
    call = define(name) if before else None
    with samebits.enable_op_determinism():
        call = call or define(name)
        own = caught_from(call)
    assert len(own) == 1 and own[0].filename == __file__ and f"declare_op('{name}'" in str(own[0].message)
    assert any(name in text for text in warn_once.notices())


@pytest.mark.parametrize("define", WAYS)
def test_a_declared_op_is_silent(define):
    """declare_op(..., deterministic=True), before or after the op is registered, and nothing is said of it."""
    first, second = new_name(), new_name()
    samebits.declare_op(first, deterministic=True)
    calls = define(first), define(second)
    samebits.declare_op(second, deterministic=True)
    with samebits.enable_op_determinism():
        assert caught_from(calls[0]) == caught_from(calls[1]) == []


@pytest.mark.parametrize("define", WAYS)
def test_an_op_declared_nondeterministic_raises_at_its_call(define):
    """declare_op(..., deterministic=False): refused at every call; with 'warn' it runs and warns once."""
    name = new_name()
    call = define(name)
    with samebits.enable_op_determinism():
        samebits.declare_op(name, deterministic=False)
        for _ in range(2):
            with pytest.raises(UnimplementedError, match=f"{name}, called at {__file__}:"):
                call(X)
    with samebits.enable_op_determinism(on_unimplemented="warn"):
        assert [w.category for w in caught_from(call)] == [UnimplementedWarning]
    assert caught_from(call) == []


@pytest.mark.parametrize("define", WAYS)
def test_without_the_switch_nothing_is_said(define):
    """Negative control: an undeclared op is silent while the switch is off, also after it was on."""
    call = define(new_name())
    assert caught_from(call) == []
    with samebits.enable_op_determinism():
        pass
    assert caught_from(call) == [] and custom_ops._watched == {}


@pytest.mark.parametrize("define", [by_custom_op, by_library("CompositeImplicitAutograd")])
def test_the_first_call_differentiates_as_ever(define):
    """The call that warns has the gradient that the op has."""
    call = define(new_name())
    x = torch.ones(2, requires_grad=True)
    with samebits.enable_op_determinism(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            x.grad = None
            call(x).sum().backward()
            assert x.grad.tolist() == [2.0, 2.0]


def test_an_op_that_was_registered_unseen_is_found_at_a_step_boundary():
    """What C++ registers when its module is imported, past torch.library, is found between two steps."""
    import sys
    import types

    with samebits.enable_op_determinism():
        impl = torch.library.Library.impl
        torch.library.Library.impl = impl.__wrapped__  # as from C++: nobody sees it
        call = by_functions(new_name())
        torch.library.Library.impl = impl
        assert caught_from(call) == []
        sys.modules["mine_extension"] = types.ModuleType("mine_extension")
        try:
            samebits.determinism._guards.conflicting_settings.check()
        finally:
            del sys.modules["mine_extension"]
        assert len(caught_from(call)) == 1


def test_redefining_an_op_under_the_switch_works():
    """A cell of a notebook that runs twice defines its op twice: the second one's result counts."""
    name = new_name()
    with samebits.enable_op_determinism(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_custom_op(name)(X)
        assert by_custom_op(name)(X).tolist() == [2.0, 2.0]
        again = torch.library.custom_op(name, lambda x: x * 3, mutates_args=(), schema="(Tensor x) -> Tensor")
        assert again(X).tolist() == again(X).tolist() == [3.0, 3.0]
    assert again(X).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("name", ["double", "mine::double.out", "", 3, "aten::sum", "prims::add"])
def test_a_name_that_is_none_is_refused(name):
    """declare_op takes 'namespace::name' of an op that is not torch's own."""
    with pytest.raises(InvalidArgumentError, match="declare_op"):
        samebits.declare_op(name, deterministic=True)


@pytest.mark.slow
def test_torchs_own_namespaces_are_known(python):
    """Every op that torch itself registers, its compiler, export and distributed parts imported, is in a known namespace; so are our own."""
    out = python(
        "import torch, torch._dynamo, torch._inductor.compile_fx, torch.distributed.optim, torch.export, torch.onnx\n"
        "import torch.ao.quantization, torch.distributed.fsdp, torch.distributed.tensor, torch.nn.attention.flex_attention\n"
        "import samebits.random._torch_ops\n"
        "from samebits.determinism._guards.custom_ops import TORCH_NAMESPACES\n"
        "print({n.partition('::')[0] for n in torch._C._dispatch_get_all_op_names()} - TORCH_NAMESPACES)\n"
    ).stdout
    assert out.strip() == "{'samebits'}"
