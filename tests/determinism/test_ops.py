"""`across="machines"` denies by default: every overload of the CPU is covered for a stated reason, or raises
with the way out.
"""

import os
import subprocess
import sys
import warnings
from fnmatch import fnmatchcase

import pytest
import torch

import samebits
from samebits._digest import of_value
from samebits.determinism._dispatcher import kernels, overload
from samebits.determinism._ops import coverage
from samebits.determinism._ops.replacements import REPLACEMENTS
from samebits.determinism.table import lookup, reviewed
from samebits.errors import UnimplementedError, UnimplementedWarning

OURS = frozenset((it.op, it.device) for it in REPLACEMENTS)


@pytest.fixture
def mode():
    """The mode, and a seed."""
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="machines"):
        yield


def value(kind, number):
    """Some argument of a schema's type; a refusal looks at none."""
    simple = {
        "Tensor": torch.ones(2, 2) * number,
        "int": 1,
        "SymInt": 1,
        "float": 1.0,
        "bool": False,
        "number": 1.0,
        "Scalar": 1.0,
        "str": "none",
        "Device": torch.device("cpu"),
    }
    if kind in simple:
        return simple[kind]
    if kind.startswith("List["):
        item = value(kind.removeprefix("List[").removesuffix("]"), number)
        return [] if item is None else [item]
    if kind.startswith("Optional[List"):
        return value(kind.removeprefix("Optional[").removesuffix("]"), number)
    return value("Tensor", number) if kind == "Optional[Tensor]" else None


def call(full, number=1):
    """Calls an overload below autograd, with arguments by its schema."""
    op = overload(full)
    args, kwargs = [], {}
    for one in op._schema.arguments:
        if one.kwarg_only:
            if not one.has_default_value():
                kwargs[one.name] = value(str(one.type), number)
        else:
            args.append(value(str(one.type), number))
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args, **kwargs)


def of_dense_tensors():
    """The refused overloads that take a dense tensor, or none (factories)."""
    found = [
        full for full, key, one in coverage.refusals(OURS) if key == "CPU" and one.kind == coverage.DENIED
    ]
    return [full for full in found if full not in {"aten::_foobar"}]


def test_every_overload_is_covered_or_raises(mode):
    """Each overload with a kernel for the CPU is in exactly one class, and each refused one raises, before it looks at an argument."""
    rows = reviewed().rows
    kinds = {lookup(full, "cpu").machine for full in kernels("CPU") if full.removeprefix("aten::") in rows}
    assert kinds <= {"exact", "integers", "ours", "composed", "refused"}
    refused = of_dense_tensors()
    assert len(refused) > 100
    ran = []
    for full in refused:
        try:
            call(full)
        except UnimplementedError as error:
            assert full in str(error), full
        except Exception as error:
            ran.append(f"{full}: {type(error).__name__} {error}")
        else:
            ran.append(full)
    assert not ran, "\n".join(ran)


def test_without_the_mode_they_run():
    """The same overloads are not refused with thread invariance alone: the refusals are the mode's (the control)."""
    with samebits.enable_op_determinism(across="threads"):
        assert torch.linalg.svdvals(torch.eye(3)).sum() == 3
    with (
        samebits.enable_op_determinism(across="machines"),
        pytest.raises(UnimplementedError, match="linalg_svd"),
    ):
        torch.linalg.svdvals(torch.eye(3))
    assert torch.linalg.svdvals(torch.eye(3)).sum() == 3


@pytest.mark.parametrize(
    ("call", "typed", "op", "line"),
    [
        (
            lambda x: torch.linalg.svdvals(x.view(4, 8)),
            "torch.linalg.svdvals(x.view(4, 8))",
            "_linalg_svd",
            "torch.linalg.svdvals",
        ),
        (lambda x: x.to_sparse(), "x.to_sparse()", "_to_sparse", "Tensor.to_sparse"),
        (lambda x: x.view(4, 8).abs().svd(), "x.view(4, 8).abs().svd()", "_linalg_svd", "_linalg_svd"),
    ],
    ids=["function", "method", "chain"],
)
def test_a_refusal_shows_what_was_typed_and_the_command_that_says_more(mode, call, typed, op, line):
    """The user's call and line stand before the aten op; `samebits ops` gets torch's name, or the op's where it is not clear."""
    with pytest.raises(UnimplementedError) as caught:
        call(torch.ones(32))
    text = str(caught.value)
    assert text.startswith(f"`{typed}` at {__file__}:") and f" calls aten::{op}, which has no kernel" in text
    assert f"`samebits ops {line}` says what is covered" in text


def test_a_refusal_without_a_source_names_the_op(mode):
    """Negative control: code given to exec has no text, and the op comes first, as its name for the command."""
    with pytest.raises(
        UnimplementedError,
        match=r"^aten::_linalg_svd at <string>:1 has no kernel.*`samebits ops _linalg_svd`",
    ):
        exec(
            "torch.linalg.svdvals(x)",
            {"torch": torch, "x": torch.ones(4, 8), "__name__": "__main__"},
        )


def overloads_of(name):
    """The overloads that a name of covered.toml speaks of, with their in-place and out forms."""
    rows = reviewed().rows
    named = {
        row.name
        for row in rows.values()
        if fnmatchcase(row.name, name) or fnmatchcase(row.name.partition(".")[0], name)
    }
    return named | {row.name for row in rows.values() if row.form_of in named}


def test_no_line_of_the_list_is_idle():
    """Each class of the list exists; each op, overload and pattern is one of torch's, named once, and has an overload without a kernel of ours."""
    classes = {rule.name for rule in coverage.RULES}
    ours = {op.removeprefix("aten::") for op, _ in OURS}
    names = [name for group in coverage.groups() for name in group.get("ops", ())]
    assert {name for group in coverage.groups() for name in group.get("classes", ())} <= classes
    assert len(names) == len(set(names))
    assert [name for name in names if overloads_of(name) <= ours] == []
    assert overloads_of("mm") > overloads_of("mm.out") == {"mm.out"} <= ours, (
        "the control: a name of ours alone"
    )


@pytest.mark.parametrize(
    "compute",
    [
        lambda z: z.log(),
        lambda z: z**3,
        lambda z: z.sin(),
        lambda z: z.sqrt(),
        lambda z: z.prod(),
        lambda z: z.cumprod(0),
        lambda z: torch.linalg.inv(z),
    ],
)
def test_functions_of_complex_numbers_raise(mode, compute):
    """Functions of complex numbers raise, but for products, quotients, sums, sizes, angles and exp."""
    z = torch.ones(2, 2, dtype=torch.complex64)
    assert torch.equal((z * z / z + 1j).abs() * z, 2**0.5 * z + (z @ z - 2 * z))
    with pytest.raises(UnimplementedError):
        compute(z)


def test_integers_keep_torchs_kernels(mode):
    """Sums and products of integers are exact in any order, and stay."""
    x = torch.arange(6).view(2, 3)
    assert x.sum() == 15
    assert (x @ x.T).tolist() == [[5, 14], [14, 50]]
    assert torch.addbmm(x[:, :2], x[None, :, :2], x[None, :, :2]).tolist() == [[3, 5], [15, 23]]
    with pytest.raises(UnimplementedError, match="_int_mm of float32"):
        torch._int_mm(x.float(), x.T.float())


def test_layouts_that_are_not_dense_raise(mode):
    """Sparse and quantized tensors are refused by name."""
    with pytest.raises(UnimplementedError, match="_to_sparse"):
        torch.eye(3).to_sparse()
    with pytest.raises(UnimplementedError, match="quantize_per_tensor"):
        torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def test_compiled_code_raises(mode):
    """torch.compile raises under the mode, and so does TorchScript code that was made before it."""
    with pytest.raises(UnimplementedError, match=r"torch\.compile has other bits on another CPU"):
        torch.compile(lambda x: x + 1)(torch.ones(3))


def test_torchscript_raises_and_comes_back():
    """Functions and modules of TorchScript raise under the mode, wherever they were made, and run again without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = torch.jit.script(torch.nn.functional.relu6)
        module = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    with samebits.enable_op_determinism(across="machines"):
        for code, x in ((function, torch.ones(2)), (module, torch.ones(1, 2))):
            with pytest.raises(UnimplementedError, match="TorchScript"):
                code(x)
    assert function(torch.ones(2)).sum() == 2
    assert module(torch.ones(1, 2)).shape == (1, 2)


def test_with_warn_it_runs_and_says_so():
    """on_unimplemented='warn' runs torch's kernel, after a warning that names the op."""
    with samebits.enable_op_determinism(across="machines", on_unimplemented="warn"):
        with pytest.warns(UnimplementedWarning, match="aten::_linalg_svd"):
            assert torch.linalg.svdvals(torch.eye(3)).sum() == 3


def test_it_is_in_the_fingerprint(mode):
    """The fingerprint names the mode; with the plain switch (the control) it does not."""
    assert samebits.determinism.environment_fingerprint()["op_determinism"]["across"] == "machines"
    with samebits.enable_op_determinism():
        assert samebits.determinism.environment_fingerprint()["op_determinism"]["across"] == "runs"


def test_a_machine_without_the_vectors_is_refused():
    """Where torch uses its plain C++ kernels, whose normal numbers are others, the mode raises and nothing is changed."""
    code = (
        "import samebits\n"
        "try: samebits.enable_op_determinism(across='machines')\n"
        "except samebits.errors.ConflictError as error: print(error, samebits.op_determinism_enabled())"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "AVX2 and FMA" in shown.stdout
    assert shown.stdout.strip().endswith("False")


def test_a_number_is_the_operand_that_was_written():
    """Equal numbers of other kinds or signs, and another default type, give torch's own types and bits, again and again."""

    def results():
        counts, ones = torch.arange(1, 4), torch.ones(3)
        twin = torch.ones(3, dtype=torch.complex64)
        values = [counts * 2.5, counts * 1, counts * True, counts * 1.0, counts / 3, ones * 0.0, ones * -0.0]
        return [*values, twin * complex(0.0, -0.0), twin * complex(-0.0, 0.0)]

    expected, found = {}, {}
    for default in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(default)
        try:
            expected[default] = results()
            with samebits.enable_op_determinism(across="machines"):
                found[default] = results()
        finally:
            torch.set_default_dtype(torch.float32)
        assert of_value(found[default]) == of_value(expected[default])
    assert of_value(found[torch.float32]) != of_value(found[torch.float64])
