"""Arguments for every replaced overload: the tests and the check on a GPU run them."""

import math
from dataclasses import dataclass

import torch


@dataclass
class Maker:
    """Draws arguments: the same numbers on every device and for every dtype."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float64
    large: bool = False
    """At sizes that fill a GPU, for timing."""
    seed: int = 0

    def __post_init__(self):
        self._generator = torch.Generator().manual_seed(self.seed)

    def n(self, small, large):
        """The size to use."""
        return large if self.large else small

    def normal(self, *shape):
        """Normal numbers, rounded to bfloat16 first so that every dtype holds the same values."""
        return self.put(torch.randn(shape, generator=self._generator).bfloat16()).to(self.dtype)

    def integers(self, high, *shape):
        """Int64 below `high`."""
        return self.put(torch.randint(high, shape, generator=self._generator))

    def put(self, x):
        """The tensor on the device."""
        return x.to(self.device)


@dataclass(frozen=True)
class FormulationSample:
    """One call of an op, and the overloads that it counts for."""

    name: str
    call: str
    """The overload that is called, as `aten::median.dim`."""
    covers: tuple
    """The replaced overloads whose verification depends on it."""
    make: object
    """Makes the arguments, of a `Maker`."""
    dtypes: tuple = (torch.float64, torch.float32, torch.bfloat16)


def _sample(name, op, make, *more, dtypes=()):
    covers = (f"aten::{op}", *(f"aten::{other}" for other in more))
    return FormulationSample(name, covers[0], covers, make, dtypes or FormulationSample.dtypes)


def _resizes():
    modes = {
        "upsample_linear1d_backward": 1,
        "upsample_bilinear2d_backward": 2,
        "upsample_bicubic2d_backward": 2,
        "upsample_trilinear3d_backward": 3,
        "_upsample_bilinear2d_aa_backward": 2,
        "_upsample_bicubic2d_aa_backward": 2,
        "_upsample_lanczos2d_aa_backward": 2,
    }
    for op, dims in modes.items():
        aa = "_aa_" in op
        for name, factor in (("down", 0.5),) if aa else (("up", 2.0), ("down", 0.5)):

            def make(m, dims=dims, factor=factor):
                side = m.n(8, {1: 4096, 2: 128, 3: 32}[dims])
                size, batch = [side] * dims, (m.n(2, 8), m.n(3, 32))
                out = [int(n * factor) + (0 if m.large else 1) for n in size]
                return (m.normal(*batch, *out), out, [*batch, *size], False, *[None] * dims)

            dtypes = (torch.float64, torch.float32) if "lanczos" in op else ()
            yield _sample(f"{op} {name}", op, make, f"{op}.grad_input", dtypes=dtypes)


def _pools():
    def average(m):
        side = m.n(7, 32)
        x = m.normal(m.n(2, 8), m.n(2, 16), *[side] * 3)
        grad = m.normal(*x.shape[:2], *[(side + 1) // 2] * 3)
        return grad, x, [3] * 3, [2] * 3, [1] * 3, False, True, None

    yield _sample("avg_pool3d", "avg_pool3d_backward", average, "avg_pool3d_backward.grad_input")
    for dims, more in ((2, ()), (3, ("adaptive_avg_pool3d_backward.grad_input",))):

        def adaptive(m, dims=dims):
            batch = (m.n(2, 8), m.n(3, 32))
            sides = m.n(5, {2: 30, 3: 9}[dims]), m.n(8, {2: 128, 3: 32}[dims])
            return m.normal(*batch, *[sides[0]] * dims), m.normal(*batch, *[sides[1]] * dims)

        def adaptive_max(m, dims=dims):
            grad, x = adaptive(m, dims)
            pool = getattr(torch.nn.functional, f"adaptive_max_pool{dims}d")
            return grad, x, pool(x, grad.shape[2:], return_indices=True)[1]

        def fractional(m, dims=dims):
            grad, x = adaptive(m, dims)
            pool = getattr(torch.nn.functional, f"fractional_max_pool{dims}d")
            out = list(grad.shape[2:])
            draws = m.put(torch.rand(*x.shape[:2], dims, generator=torch.Generator().manual_seed(1)))
            draws = draws.to(m.dtype)
            indices = pool(x, 2, output_size=out, return_indices=True, _random_samples=draws)[1]
            return grad, x, [2] * dims, out, indices

        yield _sample(f"adaptive_avg_pool{dims}d", f"_adaptive_avg_pool{dims}d_backward", adaptive, *more)
        for kind, make in (("adaptive", adaptive_max), ("fractional", fractional)):
            op = f"{kind}_max_pool{dims}d_backward"
            yield _sample(op, op, make, f"{op}.grad_input", dtypes=(torch.float64, torch.float32))


def _pads_and_unpools():
    for dims in (1, 2, 3):

        def pad(m, dims=dims):
            x = m.normal(m.n(2, 8), m.n(3, 16), *[m.n(5, {1: 65536, 2: 256, 3: 40}[dims])] * dims)
            amount = [2, 3] * dims
            return m.normal(*(n + (5 if i > 1 else 0) for i, n in enumerate(x.shape))), x, amount

        op = f"reflection_pad{dims}d_backward"
        yield _sample(op, op, pad, f"{op}.grad_input")
    for dims in (2, 3):

        def unpool(m, dims=dims):
            side = m.n(6, {2: 128, 3: 32}[dims])
            pool = getattr(torch.nn.functional, f"max_pool{dims}d")
            y, indices = pool(m.normal(m.n(2, 8), m.n(3, 32), *[side] * dims), 2, return_indices=True)
            return (y, indices, [side] * dims, *([[2] * 3, [0] * 3] if dims == 3 else []))

        yield _sample(f"max_unpool{dims}d", f"max_unpool{dims}d", unpool, f"max_unpool{dims}d.out")


def _losses():
    for name, reduction in (("mean", 1), ("sum", 2)):

        def nll(m, reduction=reduction):
            n, c, side = m.n(2, 8), m.n(4, 21), m.n(5, 256)
            target = m.integers(c, n, side, side)
            return m.normal(n, c, side, side).log_softmax(1), target, m.normal(c).abs(), reduction, 1

        yield _sample(f"nll_loss2d {name}", "nll_loss2d_forward", nll, "nll_loss2d_forward.output")

    def ctc(m):
        t, n, c, s = m.n(9, 256), m.n(3, 16), m.n(5, 64), m.n(4, 40)
        log_probs = m.normal(t, n, c).log_softmax(2)
        targets = m.integers(c - 1, n, s) + 1
        lengths = [t - i % 3 for i in range(n)], [s - i % 3 for i in range(n)]
        loss, alpha = torch.ops.aten._ctc_loss(log_probs, targets, *lengths, 0, False)
        return (m.normal(n), log_probs, targets, *lengths, loss, alpha, 0, False)

    yield _sample("ctc_loss", "_ctc_loss_backward", ctc, dtypes=(torch.float64, torch.float32))

    def bag(m):
        rows, features, bags = m.n(5, 1000), m.n(4, 64), m.n(3, 4096)
        weight, index = m.normal(rows, features), m.integers(rows, bags * 4)
        offsets = m.put(torch.arange(bags) * 4)
        _, bag_of, size, best = torch.ops.aten._embedding_bag(weight, index, offsets, False, 2)
        return m.normal(bags, features), index, bag_of, size, best, rows, False, 2, None

    def margins(m):
        n, c = m.n(5, 1000), m.n(7, 100)
        x, target = m.normal(n, c), m.integers(c + 1, n, c) - 1  # -1 ends a row's targets
        _, is_target = torch.ops.aten.multilabel_margin_loss_forward(x.double(), target, 1)
        return m.normal(1)[0], x, target, 1, is_target.to(x.dtype)

    op = "multilabel_margin_loss_backward"
    yield _sample(op, op, margins, f"{op}.grad_input")

    dtypes = (torch.float64, torch.float32)
    yield _sample("embedding_bag max", "_embedding_bag_dense_backward", bag, dtypes=dtypes)


def _samplers():
    for dims, mode, padding in ((2, 0, 0), (2, 0, 1), (2, 0, 2), (2, 1, 0), (2, 2, 0), (3, 0, 0), (3, 1, 2)):

        def grid(m, dims=dims, mode=mode, padding=padding):
            side = m.n(5, {2: 128, 3: 32}[dims])
            shape = (m.n(2, 4), m.n(3, 16), *[side] * dims)
            points = (m.normal(shape[0], *[side + 1] * dims, dims) * 0.7).clamp_(-1.5, 1.5)
            grad = m.normal(*shape[:2], *[side + 1] * dims)
            return grad, m.normal(*shape), points, mode, padding, False, [True, True]

        op = f"grid_sampler_{dims}d_backward"
        yield _sample(f"{op} mode {mode} padding {padding}", op, grid, dtypes=(torch.float64, torch.float32))

    def cudnn(m):
        x = m.normal(m.n(2, 4), 3, *[m.n(5, 128)] * 2)
        points = (m.normal(len(x), *[m.n(4, 128)] * 2, 2) * 0.7).clamp_(-1.5, 1.5)
        return x, points, m.normal(*x.shape[:2], *points.shape[1:3])

    dtypes = (torch.float64, torch.float32)
    yield _sample("cudnn_grid_sampler", "cudnn_grid_sampler_backward", cudnn, dtypes=dtypes)


def _places():
    def write(m):
        n = m.n(20, 1 << 20)
        return m.normal(n), m.integers(n, n // 2, 2), m.normal(n // 2, 2), False

    def histc(m):
        return m.normal(m.n(30, 1 << 20)), 10, -2, 2

    def bincount(m):
        n = m.n(30, 1 << 20)
        return m.integers(m.n(6, 1000), n), m.normal(n)

    def product(m):
        rows, n = m.n(4, 64), m.n(12, 1 << 14)
        near_one = m.normal(rows, n) * 2**-7 + 1  # so that long products stay finite
        return m.normal(rows, n), 1, m.integers(n // 2, rows, n), near_one, "prod"

    def running(m):
        return m.normal(m.n(3, 8), m.n(200, 1 << 17)), 1

    def row(m):
        n = m.n(200, 1 << 20)
        return m.normal(n) * 2**-9 + 1, 0  # near one, so that long products stay finite

    wide = (torch.float64, torch.float32)
    yield _sample("cumprod of one row", "cumprod", row, "cumprod.out", "cumprod_")
    yield _sample("logcumsumexp of one row", "_logcumsumexp", row, "_logcumsumexp.out")
    yield _sample("put_", "put_", write)
    yield _sample("histc", "histc", histc, "histc.out", dtypes=wide)
    yield _sample("bincount with weights", "bincount", bincount, dtypes=wide)
    yield _sample("cumsum", "cumsum", running, "cumsum.out", "cumsum_")
    more = "scatter_reduce.two_out", "scatter_reduce_.two"
    yield _sample("scatter_reduce prod", "scatter_reduce.two", product, *more, dtypes=wide)


def _ranks():
    for op, replaced in (
        ("median.dim", "median.dim_values"),
        ("nanmedian.dim", "nanmedian.dim_values"),
        ("kthvalue", "kthvalue.values"),
    ):

        def ties(m, op=op):
            x = (m.normal(m.n(4, 256), m.n(9, 4096)) * 2).round()  # many equal values
            x[0, :: m.n(2, 7)] = math.nan if op != "kthvalue" else 1.0
            return (x, 3, 1) if op == "kthvalue" else (x, 1)

        yield FormulationSample(op, f"aten::{op}", (f"aten::{replaced}",), ties)


SAMPLES = (
    *_resizes(),
    *_pools(),
    *_pads_and_unpools(),
    *_losses(),
    *_samplers(),
    *_places(),
    *_ranks(),
)
