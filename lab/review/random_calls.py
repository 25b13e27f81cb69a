"""Elementwise ops over real thread counts, as an outsider would try them: which calls change bits, and what the table says.

    python -m lab.review.random_calls [--switch on|off] [--part NAME] [--seed 1]

Each case is one call (functional, in place, out=, foreach, or with its gradient) on random numbers, with scalar arguments
drawn for it, in one type, shape and layout, at 1, 2, 3, 4 and 7 threads. It shares nothing with the hunt of the tests
but the question. For a case that differs, the ops that gave other bits for equal inputs are looked up in the op table:
"not named" counts those of which it promises the same bits over threads. Exit status 1 if there are any.
"""

import argparse
import collections
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import samebits
from lab.catalogue.case import ReviewCase, with_gradients
from lab.review.measure import measure
from lab.review.rows import disagreements

COUNTS = (1, 2, 3, 4, 7)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((100_003,), (131_841,), (257, 513), (1000, 1000), (7, 33, 611))

UNARY = """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor
frac i0 lgamma log log10 log1p log2 logit neg positive rad2deg reciprocal relu round rsqrt sigmoid sign sin sinc sinh
sqrt square tan tanh trunc"""
COMPLEX = "abs angle cos cosh exp log neg reciprocal sgn sigmoid sin sinh sqrt square tan tanh"
BINARY = """add sub mul div atan2 copysign fmax fmin fmod heaviside hypot logaddexp logaddexp2 maximum minimum nextafter
pow remainder rsub xlogy"""
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "elu": lambda x, s: F.elu(x, alpha=s),
    "celu": lambda x, s: F.celu(x, alpha=s),
    "selu": lambda x, _s: F.selu(x),
    "gelu": lambda x, _s: F.gelu(x),
    "gelu tanh": lambda x, _s: F.gelu(x, approximate="tanh"),
    "silu": lambda x, _s: F.silu(x),
    "mish": lambda x, _s: F.mish(x),
    "softplus": lambda x, s: F.softplus(x, beta=s, threshold=9.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "hardswish": lambda x, _s: F.hardswish(x),
    "hardsigmoid": lambda x, _s: F.hardsigmoid(x),
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "leaky_relu": F.leaky_relu,
    "logsigmoid": lambda x, _s: F.logsigmoid(x),
    "tanhshrink": lambda x, _s: F.tanhshrink(x),
    "threshold": lambda x, s: F.threshold(x, s, -s),
    "logit": lambda x, s: torch.logit(x.sigmoid(), eps=s / 10),
    "pow": lambda x, s: (x.abs() + 0.1).pow(s),
    "rsqrt": lambda x, s: (x.abs() + s).rsqrt(),
    "tanh": lambda x, s: torch.tanh(x * s),
    "sinh": lambda x, _s: torch.sinh(x),
    "clamp": lambda x, s: x.clamp(-s, s),
    "exp of a number": lambda x, s: torch.pow(s, x),
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "smooth_l1_loss": lambda x, y, s, r: F.smooth_l1_loss(x, y, beta=s, reduction=r),
    "huber_loss": lambda x, y, s, r: F.huber_loss(x, y, delta=s, reduction=r),
    "mse_loss": lambda x, y, _s, r: F.mse_loss(x, y, reduction=r),
    "l1_loss": lambda x, y, _s, r: F.l1_loss(x, y, reduction=r),
    "bce with logits": lambda x, y, _s, r: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
    "soft_margin_loss": lambda x, y, _s, r: F.soft_margin_loss(x, y.detach().sign(), reduction=r),
    "poisson_nll_loss": lambda x, y, s, r: F.poisson_nll_loss(x, y.abs(), eps=s, reduction=r),
    "kl_div": lambda x, y, _s, r: F.kl_div(x, y.sigmoid(), reduction=r),
}
TERNARY: dict[str, Callable[..., Tensor]] = {
    "addcmul": lambda x, y, z, s: torch.addcmul(x, y, z, value=s),
    "addcdiv": lambda x, y, z, s: torch.addcdiv(x, y, z.abs() + 0.2, value=s),
    "lerp": lambda x, y, z, _s: torch.lerp(x, y, z),
    "lerp of a number": lambda x, y, _z, s: torch.lerp(x, y, s),
    "where": lambda x, y, z, s: torch.where(z > s, x, y),
    "clamp": lambda x, y, z, s: torch.clamp(x, y - s, z + s),
    "add and mul": lambda x, y, z, s: x * s + y / 3 - z,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "sliced": lambda t: torch.cat([t, t[..., :5]], -1)[..., 2 : t.shape[-1] + 2],
    "stepped": lambda t: torch.stack([t, t], -1)[..., 1],
    "expanded row": lambda t: t[:1].expand_as(t),
    "expanded column": lambda t: t[..., :1].expand_as(t),
    "number": lambda t: t.flatten()[0],
}  # fmt: skip
_ALIKE = ("dense", "transposed", "sliced", "stepped")


class Draw:
    """Numbers for one case, from its seed alone."""

    def __init__(self, seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.random, self.shape, self.dtype = random.Random(f"{seed} {shape} {dtype}"), shape, dtype
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.complex128 if dtype.is_complex else torch.float64
        three = [torch.randn(shape, generator=generator, dtype=drawn) * 2 for _ in range(3)]
        self._dense = itertools.cycle([x.to(dtype) for x in three])  # drawing is most of what a case costs
        self._laid_out: dict[tuple[int, str], Tensor] = {}

    def tensor(self, layout: str = "dense") -> Tensor:
        """Standard normal numbers, times two: one of three tensors, in turn. A case does not write to them."""
        x = next(self._dense)
        key = (id(x), layout)
        if key not in self._laid_out:
            self._laid_out[key] = LAYOUTS[layout](x)
        return self._laid_out[key]

    def scalar(self) -> float:
        """Between 0.05 and 2, never a power of two."""
        return round(self.random.uniform(0.05, 2), 3) + 0.0007


def unary(draw: Draw) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Functional, in place, and into a tensor."""
    for name, layout in itertools.product((COMPLEX if draw.dtype.is_complex else UNARY).split(), _ALIKE):
        x, op = draw.tensor(layout), getattr(torch, name)
        yield f"{name} {layout}", partial(op, x)
        if layout in {"dense", "sliced"} and not draw.dtype.is_complex and name not in {"angle", "positive"}:
            yield f"{name}_ {layout}", lambda x=x, name=name: getattr(x.clone(), f"{name}_")()
            yield f"{name} out {layout}", lambda x=x, op=op: op(x, out=torch.empty_like(x))


def binary(draw: Draw) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every op with operands in every layout, and an alpha where there is one."""
    for name in ("add sub mul div" if draw.dtype.is_complex else BINARY).split():
        op = getattr(torch, name)
        for left, right in [(one, one) for one in _ALIKE] + [
            pair for other in LAYOUTS for pair in (("dense", other), (other, "dense"))
        ]:
            if (left, right) in {("dense", "number"), ("number", "dense")} and name == "rsub":
                continue
            x, y, given = draw.tensor(left), draw.tensor(right), {}
            if name in {"add", "sub", "rsub"}:
                given = {"alpha": draw.scalar()}
            yield f"{name} {left} {right} {given or ''}", partial(op, x, y, **given)
            if name in {"add", "sub"}:
                yield f"{name} {left} {right}", partial(op, x, y)
            if left == "dense" and name != "rsub":
                yield (
                    f"{name}_ {right}",
                    lambda x=x, y=y, name=name, given=given: getattr(x.clone(), f"{name}_")(y, **given),
                )


def ternary(draw: Draw) -> Iterator[tuple[str, Callable[[], Any]]]:
    """With one operand in every layout, and with all in one."""
    for name, op in TERNARY.items():
        for layouts in [("dense",) * i + (one,) + ("dense",) * (2 - i) for one in LAYOUTS for i in range(3)]:
            operands, scalar = [draw.tensor(one) for one in layouts], draw.scalar()
            yield f"{name} {' '.join(layouts)} {scalar}", partial(op, *operands, scalar)
    if len(draw.shape) == 2:
        for layout in ("dense", "transposed", "sliced", "expanded row"):
            x, scalar = draw.tensor(layout), draw.scalar()
            column, row = draw.tensor()[:, 0], draw.tensor()[0]
            yield (
                f"addr {layout} {scalar}",
                partial(torch.addr, x, column, row, beta=scalar, alpha=draw.scalar()),
            )
            yield f"addr {layout}", partial(torch.addr, x, column, row)


def gradients(draw: Draw) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Activations and losses, forward and backward."""
    for (name, op), layout in itertools.product(ACTIVATIONS.items(), _ALIKE):
        x, scalar = draw.tensor(layout), draw.scalar()
        yield f"{name} {layout} {scalar}", partial(with_gradients, lambda x, op=op, s=scalar: op(x, s), [x])
    for (name, op), reduction in itertools.product(LOSSES.items(), ("none", "mean", "sum")):
        for layout in ("dense", "sliced", "expanded column"):
            x, y, scalar = draw.tensor(), draw.tensor(layout), draw.scalar()
            loss = lambda x, y, op=op, s=scalar, r=reduction: op(x, y, s, r)  # noqa: E731
            yield f"{name} {reduction} {layout} {scalar}", partial(with_gradients, loss, [x, y])


def foreach(draw: Draw) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Lists of tensors, and optimizers made of them."""
    xs, ys, zs = ([draw.tensor() for _ in range(3)] for _ in range(3))
    s = draw.scalar()
    yield f"_foreach_add alpha {s}", partial(torch._foreach_add, xs, ys, alpha=s)
    yield f"_foreach_sub alpha {s}", partial(torch._foreach_sub, xs, ys, alpha=s)
    yield "_foreach_add", partial(torch._foreach_add, xs, ys)
    yield "_foreach_mul", partial(torch._foreach_mul, xs, ys)
    yield "_foreach_div", partial(torch._foreach_div, xs, ys)
    yield f"_foreach_addcmul {s}", partial(torch._foreach_addcmul, xs, ys, zs, s)
    yield f"_foreach_addcdiv {s}", partial(torch._foreach_addcdiv, xs, ys, zs, s)
    yield f"_foreach_lerp {s}", partial(torch._foreach_lerp, xs, ys, s)
    for name in ("exp", "sigmoid", "sqrt", "tanh", "erf", "lgamma", "log1p", "sinh", "cosh", "reciprocal"):
        yield f"_foreach_{name}", partial(getattr(torch, f"_foreach_{name}"), xs)
    if draw.dtype.is_complex:
        return
    for name, kind in itertools.product(("SGD", "AdamW", "Adam", "NAdam", "RMSprop"), ("foreach", "fused")):
        if kind == "foreach" or name in {"SGD", "AdamW", "Adam"}:
            yield f"{name} {kind}", partial(_steps, name, kind, xs[0], ys[0])


def _steps(name: str, kind: str, x: Tensor, grad: Tensor) -> Tensor:
    parameter = torch.nn.Parameter(x.clone())
    optimizer = getattr(torch.optim, name)([parameter], lr=0.013, weight_decay=0.07, **{kind: True})
    for scale in (1.0, 0.3):
        parameter.grad = grad * scale
        optimizer.step()
    return parameter.detach()


PARTS = {f.__name__: f for f in (unary, binary, ternary, gradients, foreach)}


def cases(part: str, seed: int) -> Iterator[ReviewCase]:
    """Every case of a part, with the shapes in turn."""
    complex_too = () if part in {"ternary", "gradients"} else (torch.complex64,)
    for dtype, (turn, shape) in itertools.product((*FLOATS, *complex_too), enumerate(SHAPES)):
        for number, (name, call) in enumerate(PARTS[part](Draw(seed, shape, dtype))):
            if (number + FLOATS.index(dtype) if dtype in FLOATS else number) % len(SHAPES) != turn:
                continue
            label = f"{name} {'x'.join(map(str, shape))} {str(dtype)[6:]}"
            yield ReviewCase(part, label, lambda call=call: iter([call]), 1, "sweep", counts=COUNTS)


def main() -> int:
    """Prints the counts, and each op that the table does not name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--switch", choices=("on", "off"), default="on")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(asked.switch == "on", across="threads")
    total = 0
    for part in [asked.part] if asked.part else PARTS:
        count: collections.Counter[str] = collections.Counter()
        for case in cases(part, asked.seed):
            row = measure(case)
            count["cases"] += row.threads is not None
            count["could not be run"] += row.threads is None
            nan = row.threads is False and row.largest == 0
            count["differ"] += row.threads is False and not nan
            count["differ in the bits of a NaN only"] += nan
            if row.threads is False and not nan and (lines := disagreements([row])):
                count["not named"] += 1
                print(*lines, sep="\n", flush=True)
        print(f"{part}: " + ", ".join(f"{number} {what}" for what, number in count.items()), flush=True)
        total += count["not named"]
    print(f"not named by the op table: {total}")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
