"""Calls of elementwise functions, reductions, losses and functions that index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from operands import FLOATS, integers, layouts, tensor, with_gradients

Cases = Iterator[tuple[str, Callable[[], Any]]]
UNIT = {
    name: (-0.95, 0.95)
    for name in "asin acos atanh erfinv".split()
}  # fmt: skip
RANGES = {
    **UNIT,
    **dict.fromkeys(
        "log log2 log10 log1p sqrt rsqrt lgamma digamma acosh reciprocal special.log_ndtr".split(),
        (1.05, 9.0),
    ),
    **dict.fromkeys("logit special.ndtri".split(), (0.02, 0.98)),
}
UNARY = (
    "abs neg exp expm1 exp2 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc erfinv lgamma digamma reciprocal square sgn sign angle logit i0 sinc frac trunc floor ceil round "
    "deg2rad rad2deg special.i0e special.i1 special.i1e special.ndtri special.log_ndtr special.entr special.bessel_j0 "
    "nn.functional.relu nn.functional.relu6 nn.functional.elu nn.functional.selu nn.functional.celu nn.functional.gelu "
    "nn.functional.silu nn.functional.mish nn.functional.hardswish nn.functional.hardsigmoid nn.functional.hardtanh "
    "nn.functional.softplus nn.functional.softshrink nn.functional.hardshrink nn.functional.tanhshrink "
    "nn.functional.logsigmoid nn.functional.leaky_relu nn.functional.softsign"
).split()
BINARY = (
    "add sub mul div true_divide floor_divide pow fmod remainder atan2 hypot logaddexp logaddexp2 maximum minimum fmax "
    "copysign nextafter float_power xlogy special.xlog1py special.zeta rsub heaviside ldexp igamma igammac"
).split()
POLYNOMIALS = (
    *(f"special.{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *(
        f"special.{name}"
        for name in "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p".split()
    ),
)
BINARY.extend(POLYNOMIALS)
MORE: dict[str, Callable[..., Any]] = {
    "gelu.tanh": lambda x: F.gelu(x, approximate="tanh"),
    "pow.2": lambda x: x.abs().pow(2.5),
    "pow.number": lambda x: torch.pow(1.5, x),
    "pow.half": lambda x: x.abs().add(0.1) ** -0.5,
    "rsub.number": lambda x: 3 - x,
    "add.alpha": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "div.floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "clamp": lambda x: x.clamp(-0.5, 0.4),
    "lerp": lambda x: torch.lerp(x, x.flip(0), x.square()),
    "lerp.number": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x, value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.flip(0).abs() + 0.5, value=0.3),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "threshold": lambda x: F.threshold(x, 0.1, 0.2),
    "logit.eps": lambda x: torch.logit(x, eps=0.3),
    "glu": lambda x: F.glu(torch.cat([x, 2 * x], -1)),
    "foreach": lambda x: tuple(torch._foreach_lerp([x, 2 * x], [x.flip(0), x], 0.3)),
    "broadcast": lambda x: x.atan2(x[..., :1] + 2) + x.hypot(x[..., :1]),
    "elu_": lambda x: F.elu(1 * x, inplace=True),
    "gelu_": lambda x: torch.ops.aten.gelu_(1 * x),
    "mish_": lambda x: F.mish(1 * x, inplace=True),
    "silu_": lambda x: F.silu(1 * x, inplace=True),
    "fmod.number": lambda x: x.fmod(0.3) + x.remainder(0.3),
}  # fmt: skip


def _named(name: str) -> Callable[..., Any]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _all_forms(name: str, function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    """The function, its in-place form and its `out` form."""
    out = function(*inputs)
    forms = [out]
    if hasattr(torch.Tensor, f"{name}_") and out.dtype is inputs[0].dtype:
        own = torch.empty_strided(inputs[0].shape, inputs[0].stride(), dtype=inputs[0].dtype)
        own = (
            torch.empty(inputs[0].shape, dtype=inputs[0].dtype) if own.numel() and 0 in own.stride() else own
        )
        forms.append(getattr(own.copy_(inputs[0]), f"{name}_")(*inputs[1:]))
    if "functional" not in name and name not in WITHOUT_OUT:
        forms.append(
            function(
                *inputs,
                out=torch.empty(out.shape[::-1], dtype=out.dtype).permute(*reversed(range(out.dim()))),
            )
        )
    return forms


WITHOUT_OUT = {"rsub", "special.bessel_j0", "ldexp"}
SIMPLER = ("turned", "row")
"""Layouts whose gradients are asked for."""


def pointwise() -> Cases:
    """Each elementwise function: eight layouts with in-place and `out` forms, and gradients."""
    for dtype in (*FLOATS, torch.float16, torch.complex64):
        for name in (*UNARY, *BINARY, *MORE):
            if _has(name, dtype):
                yield f"{name}/{str(dtype)[6:]}", partial(_pointwise, name, dtype)


def _has(name: str, dtype: torch.dtype) -> bool:
    function = MORE.get(name) or _named(name)
    if dtype.is_complex and name == "angle":
        return True
    try:
        x = tensor(4, 6, dtype=dtype, low=0.1, high=0.9)
        with_gradients(function, *([x, x] if name in BINARY else [x])) if name not in NO_GRADIENT else None
        function(*([x, x] if name in BINARY else [x]))
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


NO_GRADIENT = {
    *("igamma", "igammac", "nextafter", "special.zeta", "heaviside", "special.bessel_j0"),
    *POLYNOMIALS,
}


def _pointwise(name: str, dtype: torch.dtype) -> dict[str, Any]:
    function, results = MORE.get(name) or _named(name), {}
    low, high = RANGES.get(name, (0.1, 5.0) if name in BINARY else (-4.0, 4.0))
    made = layouts(lambda shape: tensor(*shape, dtype=dtype, low=low, high=high))
    others = layouts(lambda shape: tensor(*shape, dtype=dtype, low=0.2, high=4.0, seed=3))
    for layout, x in made.items():
        inputs = (x, others[layout]) if name in BINARY else (x,)
        results[layout] = [function(*inputs)] if name in MORE else _all_forms(name, function, *inputs)
        if layout in SIMPLER and name not in NO_GRADIENT and not dtype.is_complex:
            results[f"{layout} gradients"] = with_gradients(function, *inputs)[1]
    return results


REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _named(name) for name in "sum mean nansum nanmean prod logsumexp amax amin std var median all".split()},
    "var_mean": lambda x, *dim: torch.var_mean(x, *dim),
    "std_mean": lambda x, *dim: torch.std_mean(x, *dim, correction=2) if dim else torch.std_mean(x),
    **{f"norm.{p}": partial(lambda p, x, *dim: torch.linalg.vector_norm(x, p, *dim), p) for p in (0, 1, 2, 3, 0.5, float("inf"))},
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim),
    "softmin": lambda x, dim: F.softmin(x, dim),
    "cumsum": lambda x, dim: torch.cumsum(x, dim),
    "cumprod": lambda x, dim: torch.cumprod(x, dim),
    "logcumsumexp": lambda x, dim: torch.logcumsumexp(x, dim),
    "cummax": lambda x, dim: torch.cummax(x, dim),
    "quantile": lambda x, dim: torch.quantile(x, 0.3, dim),
    "nanquantile": lambda x, dim: torch.nanquantile(x, 0.3, dim),
    "trapz": lambda x, dim: torch.trapezoid(x, dx=0.1, dim=dim) + torch.trapz(x, x.square(), dim=dim),
    "normalize": lambda x, dim: F.normalize(x, dim=dim),
    "renorm": lambda x, dim: torch.renorm(x, 2, dim, 1.0),
    "sum_to_size": lambda x, dim: x.sum_to_size(*(1 if d == dim % x.dim() else s for d, s in enumerate(x.shape))),
    "cosine_similarity": lambda x, dim: F.cosine_similarity(x, x.flip(0), dim),
}  # fmt: skip
WHOLE: dict[str, Callable[..., Any]] = {
    "cov": lambda x: torch.cov(x[:20]), "corrcoef": lambda x: torch.corrcoef(x[:20]),
    "dist": lambda x: torch.dist(x, x.flip(0), 2), "cdist": lambda x: torch.cdist(x[:90], x[90:170]), "pdist": lambda x: F.pdist(x[:60]),
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x), "histc": lambda x: torch.histc(x.detach(), 37),
    "sum.dtype": lambda x: x.sum(dtype=torch.float64), "mean.out": lambda x: torch.mean(x, 0, dtype=torch.float32),
    "count_nonzero": lambda x: torch.count_nonzero(x > 0), "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x),
}  # fmt: skip


def reductions() -> Cases:
    """Each reduction of all, of one and of several dimensions, short and long, with gradients."""
    for dtype in FLOATS:
        for name, function in REDUCTIONS.items():
            yield f"{name}/{str(dtype)[6:]}", partial(_reduced, name, function, dtype)
        for name, function in WHOLE.items():
            yield (
                f"{name}/{str(dtype)[6:]}",
                partial(_tried, lambda f=function, d=dtype: with_gradients(f, tensor(257, 301, dtype=d))),
            )
    for dtype in (torch.complex64, torch.int32):
        x = tensor(131, 1601, dtype=dtype, low=-9, high=9)
        yield (
            f"complex_and_integers/{str(dtype)[6:]}",
            lambda x=x: [x.sum(), x.sum(0), x.t().sum(0), x[:, ::3].sum(1), x[:3].prod(0)],
        )


def _tried(run: Callable[[], Any]) -> Any:
    """The results, or the class of what is raised for a dtype that torch's kernel does not know."""
    try:
        return run()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return type(error).__name__


def _reduced(name: str, function: Callable[..., Any], dtype: torch.dtype) -> dict[str, Any]:
    shapes = {"matrix": (331, 311), "long": (3, 40_001), "narrow": (30_011, 3), "one": (1, 50_000)}
    made = {
        key: tensor(*shape, dtype=dtype, low=0.5 if name == "prod" else -1, high=1.5)
        for key, shape in shapes.items()
    }
    made |= {
        "turned": made["matrix"].t(),
        "sliced": made["narrow"][:, 1:],
        "deep": tensor(7, 83, 3, 61, dtype=dtype).permute(0, 2, 3, 1),
    }
    results = {}
    for layout, x in made.items():
        dims = [() if name in WHOLE_TOO else None, (0,), (-1,)]
        dims += [((0, 1),)] if name.startswith(SEVERAL) else []
        for dim in filter(lambda one: one is not None, dims):
            results[f"{layout} {dim}"] = _tried(lambda x=x, dim=dim: with_gradients(function, x, *dim))
    return results


SEVERAL = ("sum", "mean", "nansum", "nanmean", "std", "var", "norm", "amax", "logsumexp")
WHOLE_TOO = {
    "sum",
    "mean",
    "nansum",
    "nanmean",
    "prod",
    "std",
    "var",
    "std_mean",
    "var_mean",
    "median",
    *(f"norm.{p}" for p in (0, 1, 2, 3, 0.5, float("inf"))),
}


def losses() -> Cases:
    """Each loss by each way to reduce it, with gradients."""
    for dtype in FLOATS:
        x, y = tensor(331, 311, dtype=dtype), tensor(331, 311, dtype=dtype, seed=2)
        unit, other = (0.1 + 0.4 * (one + 1) for one in (x, y))
        target, signs = integers(331, high=311), (integers(331, 311, high=2) * 2 - 1).to(dtype)
        weight = tensor(311, dtype=dtype, low=0.5, high=2)
        calls: dict[str, Callable[..., Any]] = {
            "mse": partial(F.mse_loss, x.requires_grad_(), y), "l1": partial(F.l1_loss, x, y), "huber": partial(F.huber_loss, x, y, delta=0.3),
            "smooth_l1": partial(F.smooth_l1_loss, x, y, beta=0.3), "bce": partial(F.binary_cross_entropy, unit.detach().requires_grad_(), other),
            "bce_logits": partial(F.binary_cross_entropy_with_logits, x, other, pos_weight=weight), "kl_div": partial(F.kl_div, x, other),
            "nll": partial(F.nll_loss, x, target, weight), "cross_entropy": partial(F.cross_entropy, x, target, weight, label_smoothing=0.1),
            "cross_entropy.soft": partial(F.cross_entropy, x, other), "poisson": partial(F.poisson_nll_loss, x, other, full=True),
            "gaussian": partial(F.gaussian_nll_loss, x, y, unit.detach()), "soft_margin": partial(F.soft_margin_loss, x, signs),
            "multi_margin": partial(F.multi_margin_loss, x, target), "multilabel": partial(F.multilabel_soft_margin_loss, x, (signs > 0).to(dtype)),
            "multilabel_margin": partial(F.multilabel_margin_loss, x, torch.cat([target[:, None], -torch.ones(331, 310).long()], 1)),
            "hinge": partial(F.hinge_embedding_loss, x, signs), "cosine": partial(F.cosine_embedding_loss, x, y, signs[:, 0]),
            "ranking": partial(F.margin_ranking_loss, x, y, signs), "triplet": partial(F.triplet_margin_loss, x, y, x.detach().flip(0)),
            "nll2d": partial(F.nll_loss, x.detach().view(1, 331, 311, 1).transpose(1, 2).clone().requires_grad_(), target.view(1, 331, 1)),
        }  # fmt: skip
        for name, call in calls.items():
            yield f"{name}/{str(dtype)[6:]}", partial(_tried, partial(_loss, call))
        if dtype is not torch.bfloat16:
            logits = tensor(60, 5, 21, dtype=dtype).log_softmax(-1).requires_grad_()
            labels, lengths = integers(5, 20, high=20) + 1, torch.tensor([60, 59, 40, 33, 50])
            sizes = torch.tensor([20, 9, 1, 12, 19])
            yield f"ctc/{str(dtype)[6:]}", partial(_loss, partial(F.ctc_loss, logits, labels, lengths, sizes))
            tuples = partial(F.ctc_loss, logits, labels, tuple(lengths.tolist()), tuple(sizes.tolist()))
            yield f"ctc.tuples/{str(dtype)[6:]}", partial(_loss, tuples)


def _loss(call: partial[Any]) -> list[Any]:
    leaf, results = call.args[0], []
    for reduction in ("mean", "sum", "none"):
        loss = call(reduction=reduction)
        source = leaf if leaf.requires_grad else call.args[0]
        results += [loss, *torch.autograd.grad(loss.sum(), [source], allow_unused=True)]
    return results


def indexing() -> Cases:
    """Functions that write or add by index, pooling and its inverse, embeddings, interpolation, padding, counts."""
    for dtype in FLOATS:
        for name, function in _indexing(dtype).items():
            yield f"{name}/{str(dtype)[6:]}", partial(_tried, function)
    counted = integers(70_001, high=300)
    yield (
        "bincount",
        lambda: [torch.bincount(counted), torch.bincount(counted, tensor(70_001, dtype=torch.float64))],
    )
    x = tensor(70_001)
    yield (
        "histogram",
        lambda: [*torch.histogram(x, 30), *torch.histogram(x, torch.linspace(-1, 1, 20), weight=x.abs())],
    )
    y = tensor(9_001, 2, dtype=torch.float64)
    yield (
        "histogramdd",
        lambda: [
            *_flat(torch.histogramdd(y, [5, 6])),
            *_flat(torch.histogramdd(y, [torch.linspace(-1, 1, 7, dtype=y.dtype)] * 2, weight=y[:, 0])),
        ],
    )
    yield (
        "sorting",
        lambda: [
            x.sort()[1],
            x.round(decimals=1).sort(stable=True)[1],
            *x.topk(99),
            *counted.unique(return_counts=True),
        ],
    )


def _flat(result: Any) -> list[Any]:
    return [result[0], *result[1]]


def _indexing(dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    x, values, index = (
        tensor(2003, 37, dtype=dtype),
        tensor(5003, 37, dtype=dtype, seed=4),
        integers(5003, high=2003),
    )
    flat, wide = integers(9001, high=2003 * 37), integers(5003, 37, high=2003)
    image, volume = tensor(2, 3, 22, 25, dtype=dtype), tensor(2, 3, 8, 9, 10, dtype=dtype)
    one = partial(with_gradients)
    calls: dict[str, Callable[[], Any]] = {
        "index_add": lambda: one(lambda a, b: a.index_add(0, index, b, alpha=0.3), x, values),
        "index_put": lambda: one(lambda a, b: a.index_put((index,), b, accumulate=True), x, values),
        "index_put.last": lambda: x.clone().index_put_((index,), values),
        "index_copy": lambda: x.clone().index_copy_(0, index.unique(), values[: len(index.unique())]),
        "index_fill": lambda: x.index_fill(0, index, 0.5),
        "put": lambda: [x.clone().put_(flat, values.view(-1)[:9001]), x.clone().put_(flat, values.view(-1)[:9001], accumulate=True), torch.put(x, flat, values.view(-1)[:9001])],
        "scatter": lambda: [x.scatter(0, wide, values), x.scatter_add(0, wide, values)],
        "scatter_add": lambda: one(lambda a, b: a.scatter_add(0, wide, b), x, values),
        "masked_scatter": lambda: x.masked_scatter(x > 0, values),
        "gather": lambda: one(lambda a: a.gather(0, wide), x),
        "take": lambda: one(lambda a: a.take(flat), x),
        "index_select": lambda: one(lambda a: a.index_select(0, index), x),
        "indexed": lambda: one(lambda a: a[index][:, [1, 1, 3]], x),
        "embedding": lambda: one(lambda a: F.embedding(index, a, padding_idx=3, scale_grad_by_freq=True), x),
        "unfold": lambda: one(lambda a: F.fold(F.unfold(a, 3, stride=2), (22, 25), 3, stride=2), image),
        "grid_sample": lambda: one(lambda a, g: F.grid_sample(a, g, align_corners=False), image, tensor(2, 30, 31, 2, dtype=dtype)),
        "grid_sample.3d": lambda: one(lambda a, g: F.grid_sample(a, g, align_corners=False), volume, tensor(2, 7, 8, 9, 3, dtype=dtype)),
    }  # fmt: skip
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        calls[f"scatter_reduce.{reduce}"] = lambda r=reduce: one(
            lambda a, b: a.scatter_reduce(0, wide, b, r), x, values
        )
    for reduce in ("prod", "mean", "amax"):
        calls[f"index_reduce.{reduce}"] = lambda r=reduce: x.index_reduce(0, index, values, r)
    for mode in ("sum", "mean", "max"):
        calls[f"embedding_bag.{mode}"] = lambda m=mode: one(
            lambda a: F.embedding_bag(index, a, torch.arange(0, 5003, 7), mode=m), x
        )
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        calls[f"interpolate.{mode}"] = lambda m=mode: one(lambda a: F.interpolate(a, (31, 17), mode=m), image)
    calls["interpolate.antialias"] = lambda: one(
        lambda a: F.interpolate(a, (11, 9), mode="bilinear", antialias=True), image
    )
    calls["interpolate.trilinear"] = lambda: one(
        lambda a: F.interpolate(a, (5, 12, 17), mode="trilinear"), volume
    )
    for mode in ("constant", "reflect", "replicate", "circular"):
        calls[f"pad.{mode}"] = lambda m=mode: one(lambda a: F.pad(a, (2, 3, 1, 4), m), image)
    for n, a in ((1, image[0]), (2, image), (3, volume)):
        calls[f"max_unpool{n}d"] = lambda n=n, a=a: one(lambda b: _unpooled(n, b), a)
        calls[f"max_unpool{n}d.equal"] = lambda n=n, a=a: getattr(F, f"max_unpool{n}d")(
            a, torch.arange(a.numel()).view_as(a) % 11, 2
        )
        for kind in ("max_pool", "avg_pool", "lp_pool"):
            options = {"lp_pool": (2.0, 3, 2)}.get(kind, (3, 2))
            calls[f"{kind}{n}d"] = lambda k=kind, o=options, n=n, a=a: one(
                lambda b: getattr(F, f"{k}{n}d")(b, *o), a
            )
        for kind in ("adaptive_avg_pool", "adaptive_max_pool"):
            calls[f"{kind}{n}d"] = lambda k=kind, n=n, a=a: one(
                lambda b: [getattr(F, f"{k}{n}d")(b, 5), getattr(F, f"{k}{n}d")(b, 1)], a
            )
    return calls


def _unpooled(n: int, x: torch.Tensor) -> torch.Tensor:
    return getattr(F, f"max_unpool{n}d")(
        *getattr(F, f"max_pool{n}d")(x, 2, return_indices=True), 2, output_size=x.shape
    )
