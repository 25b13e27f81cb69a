"""`out=` of another type or shape: samebits' kernels cast, resize and raise as torch does."""

import warnings

import pytest
import torch

import samebits

aten, nn = torch.ops.aten, torch._C._nn
X = torch.linspace(-2, 2, 12).reshape(3, 4)
CALLS = {
    "addr": lambda out: torch.addr(X, X[:, 0], X[0], out=out),
    "gelu": lambda out: nn.gelu(X, out=out),
    "silu": lambda out: nn.silu(X, out=out),
    "mish": lambda out: nn.mish(X, out=out),
    "elu": lambda out: nn.elu(X, out=out),
    "softplus": lambda out: nn.softplus(X, out=out),
    "softshrink": lambda out: nn.softshrink(X, out=out),
    "glu": lambda out: nn.glu(X, out=out),
    "lerp": lambda out: torch.lerp(X, X + 1, X, out=out),
    "lerp by a number": lambda out: torch.lerp(X, X + 1, 0.3, out=out),
    "std": lambda out: torch.std(X, 1, out=out),
    "var": lambda out: torch.var(X, 1, out=out),
    "exp": lambda out: torch.exp(X, out=out),
    "pow": lambda out: torch.pow(X.abs(), X, out=out),
    "sum": lambda out: torch.sum(X, 1, out=out),
    "norm": lambda out: torch.linalg.vector_norm(X, 2, 1, out=out),
    "softmax": lambda out: torch.softmax(X, 1, out=out),
    "mm": lambda out: torch.mm(X, X.T, out=out),
    "multi_dot": lambda out: torch.linalg.multi_dot([X, X.T, X], out=out),
    "tensordot": lambda out: torch.tensordot(X, X, ([1], [1]), out=out),
    "mse_loss": lambda out: nn.mse_loss(X, X + 1, out=out),
    "addcmul": lambda out: torch.addcmul(X, X, X, value=0.3, out=out),
    "atan2": lambda out: torch.atan2(X, X + 1, out=out),
    "logit": lambda out: torch.logit(X.sigmoid(), out=out),
    "upsample_bilinear2d": lambda out: nn.upsample_bilinear2d(
        torch.ones(1, 3, 9, 9), [70, 70], False, out=out
    ),
    "histc": lambda out: torch.histc(X.bfloat16(), 3, out=out),
    **{
        f"batch norm, training {training}, {place}": lambda out, training=training, place=place: (
            aten.native_batch_norm.out(
                X,
                None,
                None,
                torch.zeros(4),
                torch.ones(4),
                training,
                0.1,
                1e-5,
                **{
                    name: out if name == place else torch.zeros(4)
                    for name in ("out", "save_mean", "save_invstd")
                },
            )
        )
        for training in (True, False)
        for place in ("out", "save_mean", "save_invstd")
    },
}
KINDS = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64


def outcome(call, dtype, shape):
    """The shape and values of `out`, or the kind of error."""
    out = torch.zeros(shape, dtype=dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(out)
    except samebits.errors.UnimplementedError:
        return None
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    return out.to(torch.complex128)


def outcomes():
    """Of all calls, types of `out` and shapes of it."""
    shapes = (3, 4), (0,), (5, 2)
    return {
        (name, dtype, shape): outcome(call, dtype, shape)
        for name, call in CALLS.items()
        for dtype in KINDS
        for shape in shapes
    }


@pytest.mark.parametrize("mode", ["threads", "machines"])
def test_what_is_asked_for_is_given_or_refused_as_in_torch(mode):
    """32 calls, 7 types, 3 shapes of `out`: torch's values (to rounding), shape or kind of error; complex ones may be refused."""
    expected = outcomes()
    with samebits.enable_op_determinism(across=mode):
        found = outcomes()
    assert len(found) == 32 * 7 * 3
    for case, torchs in expected.items():
        ours = found[case]
        if isinstance(torchs, torch.Tensor) and isinstance(ours, torch.Tensor):
            assert ours.shape == torchs.shape, case
            assert torch.allclose(ours, torchs, rtol=0.02, atol=0.01, equal_nan=True), case
        else:
            assert ours is torchs or (ours is None and case[1] is torch.complex64), case
