"""What `samebits ops --machine refused` lists is what raises under `across="machines"`: by calling it."""

import json
import subprocess
import sys

import pytest
import torch

import samebits
from samebits.determinism import table
from samebits.errors import UnimplementedError

LISTED = {"float": {"all", "all but integers"}, "complex": {"all", "complex numbers"}}
"""The words of the table for which an op of that type raises, for some arguments at least."""
BY_ANOTHER = {"norm": "p='nuc' is that of linalg.matrix_norm"}
"""Functions that raise in an op that does not have their name."""
FOR_SOME = {
    "div": "rounding_mode=None of complex numbers alone",
    "linalg.vector_norm": "dtype= of complex numbers alone",
    "masked.var": "computes no variance by the op",
    "aten::pow.Tensor_Scalar": "other exponents than 0, 1 and 2",
}  # fmt: skip
"""What is listed, and of which torch's samples have no argument that raises."""


def raises(op):
    """The word of the table for an overload; None for one that is not in it."""
    name = op.removeprefix("aten::")
    return table.lookup(op, "cpu").raises if name in table.reviewed().rows else None


def of_function(name):
    """The words for all overloads of the ops that a function of torch stands for."""
    ops = table.ops_of(name)
    return {raises(f"aten::{row}") for row in table.reviewed().rows if row.partition(".")[0] in ops}


def differences(seen, kind):
    """What the samples and the list say otherwise: unlisted, and listed without need."""
    words = LISTED[kind]
    unlisted = {op for op in seen["raised"] if raises(op) not in words}
    unlisted |= {
        name
        for name, (_, no) in seen["forward"].items()
        if no and name not in BY_ANOTHER and not of_function(name) & words
    }
    needless = {op for op in seen["ran"] if op not in {*seen["raised"], *FOR_SOME} and raises(op) in words}
    needless |= {
        name for name, (ran, no) in seen["forward"].items()
        if ran and not no and name not in FOR_SOME and len(table.ops_of(name)) == 1 and of_function(name) <= words
    }  # fmt: skip
    return unlisted, needless


def samples(root, tmp_path, dtype, part=""):
    pytest.importorskip("expecttest", reason="torch's samples import it")
    program = root / "tests" / "support" / "op_refusals.py"
    file = tmp_path / "seen.json"
    subprocess.run(
        [sys.executable, str(program), str(file), dtype, part], check=True, stdout=subprocess.DEVNULL
    )
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("dtype", "kind"), [("float32", "float"), ("complex64", "complex")])
def test_what_raises_is_what_is_listed(root, tmp_path, dtype, kind):
    """With torch's samples of every op, forward and backward: each overload that raises is listed, and each listed one that is called raises."""
    seen = samples(root, tmp_path, dtype)
    assert len(seen["forward"]) > 250
    assert differences(seen, kind) == (set(), set())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_comparison_sees_both_errors(root, tmp_path, monkeypatch):
    """Negative control: an op left out of the list, and one too many in it, are named."""
    seen = samples(root, tmp_path, "complex64", "cumprod")
    assert differences(seen, "complex") == (set(), set())
    assert differences({**seen, "raised": {"aten::mul.Tensor": 1}}, "complex")[0] == {"aten::mul.Tensor"}
    assert differences({**seen, "ran": {"aten::cumprod": 1}, "raised": {}}, "complex")[1] == {"aten::cumprod"}


C = torch.eye(2, dtype=torch.complex64)
CALLS = {
    "linalg_inv": lambda: torch.linalg.inv(C),
    "inverse": lambda: torch.inverse(C),
    "linalg_det": lambda: torch.linalg.det(C),
    "slogdet": lambda: torch.slogdet(C),
    "linalg_solve": lambda: torch.linalg.solve(C, C),
    "linalg_solve_triangular": lambda: torch.linalg.solve_triangular(C, C, upper=True),
    "linalg_cholesky": lambda: torch.linalg.cholesky(C),
    "linalg_lu_factor": lambda: torch.linalg.lu_factor(C),
    "linalg_qr": lambda: torch.linalg.qr(C),
    "cumprod": lambda: torch.cumprod(C, 0),
    "cumprod_": lambda: C.clone().cumprod_(0),
    "linalg_cross": lambda: torch.linalg.cross(C.new_ones(3), C.new_ones(3)),
    "prod": lambda: C.prod(),
    "var.correction": lambda: C.var(0),
    "sqrt": lambda: C.sqrt(),
    "_foreach_sqrt": lambda: torch._foreach_sqrt([C]),
    "pow.Tensor_Scalar": lambda: C**3,
    "special_i0": lambda: torch.special.i0(C.real.contiguous()),
    "linalg_eigh": lambda: torch.linalg.eigh(C.real),
}
"""By overload: a call that raises."""
RUN = {
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "addr_": lambda x: x.clone().addr_(x[0], x[0]),
    "dot.out": lambda x: torch.dot(x[0], x[0], out=x.new_empty(())),
    "vdot.out": lambda x: torch.vdot(x[0], x[0], out=x.new_empty(())),
    "exp": lambda x: x.exp(),
    "matmul": lambda x: x @ x,
    "div.Tensor": lambda x: x / (x + 1),
    "_foreach_exp": lambda x: torch._foreach_exp([x]),
    "linalg_norm": lambda x: torch.linalg.norm(x, "fro"),
}
"""By overload: a call of real or of complex numbers that runs."""


@pytest.mark.parametrize("name", CALLS)
def test_an_op_that_raises_is_in_the_list(name):
    """Factorisations, products and functions of complex numbers, their in-place forms and composites raise, and the table says so."""
    assert raises(f"aten::{name}")
    with samebits.enable_op_determinism(across="machines"), pytest.raises(UnimplementedError):
        CALLS[name]()
    CALLS[name]()  # torch alone computes it


@pytest.mark.parametrize("name", RUN)
def test_an_op_that_runs_is_not_in_the_list(name):
    """Negative control: what is covered for real and complex numbers runs, and the table names no type that raises."""
    assert raises(f"aten::{name}") == ""
    for x in (C.real.contiguous(), C):
        torchs = first(RUN[name](x))
        with samebits.enable_op_determinism(across="machines"):
            assert torch.allclose(first(RUN[name](x)), torchs)


def first(result):
    return result[0] if isinstance(result, (list, tuple)) else result


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_addbmm_adds_the_product_of_each_batch_in_order(dtype, threads):
    """It is an addmm for each batch, one after the other, each rounded; with the same bits for any threads, and a row with those that it has alone."""
    made = torch.Generator().manual_seed(1)
    a, b, c = (
        torch.randn(shape, generator=made).to(dtype) for shape in ((3, 40, 300), (3, 300, 50), (40, 50))
    )
    torch.set_num_threads(threads)
    with samebits.enable_op_determinism(across="machines"):
        expected = torch.addmm(c, a[0], b[0], beta=0.5, alpha=2)
        for left, right in zip(a[1:], b[1:], strict=True):
            expected = torch.addmm(expected, left, right, alpha=2)
        assert torch.equal(torch.addbmm(c, a, b, beta=0.5, alpha=2), expected)
        assert torch.equal(torch.addbmm(c, a, b, beta=0.5, alpha=2, out=c.new_empty(0)), expected)
        assert torch.equal(c.clone().addbmm_(a, b, beta=0.5, alpha=2), expected)
        assert torch.equal(torch.addbmm(c[7:9], a[:, 7:9], b, beta=0.5, alpha=2), expected[7:9])
        backwards = torch.addbmm(c, a.flip(0), b.flip(0), beta=0.5, alpha=2)
        assert not torch.equal(backwards, expected)  # negative control: the order of batches is part of it
