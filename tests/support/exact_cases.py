"""Calls of torch's own kernels that `across="machines"` keeps, or might: as a program, prints a digest of
each.

Run with ATEN_CPU_CAPABILITY=avx2 and without, it shows which of torch's kernels follow the width of vectors.
"""

import json
import sys

import torch
import torch.nn.functional as F
import xxhash

A = torch.ops.aten


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def with_gradients(call, *inputs):
    """The result of a call and the gradients of its inputs."""
    inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = call(*inputs)
    out.backward(numbers(*out.shape, seed=9, dtype=out.dtype))
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def indexed(n, m, dtype):
    x, source = numbers(n, m, dtype=dtype), numbers(3 * n, m, seed=1, dtype=dtype)
    index, wide = integers(n, 3 * n), integers(n, 3 * n, m)
    flat, weights = numbers(n * m, dtype=dtype), numbers(3 * n, seed=4, dtype=dtype)
    yield "index_add", lambda: x.index_add(0, index, source)
    yield "index_add alpha", lambda: x.index_add(0, index, source, alpha=0.3)
    yield (
        "index_add dim 1",
        lambda: x.t().contiguous().index_add(1, index, source.t().contiguous(), alpha=0.3),
    )
    yield "index_add 1d", lambda: flat.index_add(0, integers(n * m, 3 * n), weights, alpha=0.3)
    yield "index_put accumulate", lambda: x.index_put((index,), source, accumulate=True)
    yield "put accumulate", lambda: flat.put(integers(n * m, 3 * n), weights, accumulate=True)
    yield "scatter_add", lambda: x.scatter_add(0, wide, source)
    yield "scatter_add dim 1", lambda: x.scatter_add(1, integers(m, n, m), numbers(n, m, seed=2, dtype=dtype))
    yield "scatter add expanded", lambda: x.scatter_add(0, index[:, None].expand(-1, m), source)
    yield "scatter reduce=add", lambda: x.scatter(0, wide, source, reduce="add")
    yield "scatter reduce=multiply", lambda: x.scatter(0, wide, source, reduce="multiply")
    for how in ("sum", "prod", "mean", "amax", "amin"):
        yield f"scatter_reduce {how}", lambda how=how: x.scatter_reduce(0, wide, source, how)
        yield (
            f"scatter_reduce expanded {how}",
            lambda how=how: x.scatter_reduce(0, index[:, None].expand(-1, m), source, how),
        )
        lengths = torch.full((n,), 3)
        reduce = {"amax": "max", "amin": "min"}.get(how, how)
        yield (
            f"segment_reduce {how}",
            lambda reduce=reduce, lengths=lengths: with_gradients(
                lambda s: torch.segment_reduce(s, reduce, lengths=lengths, unsafe=True), source
            ),
        )
    for how in ("prod", "mean", "amax", "amin"):
        yield f"index_reduce {how}", lambda how=how: x.index_reduce(0, index, source, how)
    yield "gather backward", lambda: with_gradients(lambda x: x.gather(0, wide), x)
    yield "take backward", lambda: with_gradients(lambda x: x.take(integers(n * m, 50)), x)
    yield "index_select backward", lambda: with_gradients(lambda x: x.index_select(0, index), x)
    yield "index backward", lambda: with_gradients(lambda x: x[index], x)
    yield "embedding backward", lambda: A.embedding_dense_backward(source, index, n, -1, False)
    yield "embedding backward scaled", lambda: A.embedding_dense_backward(source, index, n, 0, True)
    yield "embedding_renorm", lambda: A.embedding_renorm(x, index, 1.0, 2.0)
    offsets = torch.arange(0, 3 * n, 4)
    for mode in ("sum", "mean", "max"):
        yield (
            f"embedding_bag {mode}",
            lambda mode=mode: with_gradients(lambda x: F.embedding_bag(index, x, offsets, mode=mode), x),
        )
        yield (
            f"embedding_bag padded {mode}",
            lambda mode=mode: with_gradients(
                lambda x: F.embedding_bag(index, x, offsets, mode=mode, padding_idx=1), x
            ),
        )
    yield (
        "embedding_bag weights",
        lambda: with_gradients(
            lambda x, w: F.embedding_bag(index, x, offsets, mode="sum", per_sample_weights=w), x, weights
        ),
    )
    yield "bincount weights", lambda: torch.bincount(index, weights)
    yield "cumsum", lambda: [x.cumsum(0), x.cumsum(1), x.t().cumsum(0)]
    yield "cumprod", lambda: [x.cumprod(0), x.cumprod(1)]
    yield "cummax", lambda: x.cummax(0)
    yield "logcumsumexp", lambda: x.logcumsumexp(0)
    yield "trace", lambda: x.trace()
    yield "unfold backward", lambda: with_gradients(lambda x: x.unfold(0, 3, 2), source)
    yield "as_strided backward", lambda: with_gradients(lambda x: x.as_strided((n, 3), (1, 1)), x.flatten())
    yield "diff, cross", lambda: [x.diff(dim=0), torch.linalg.cross(x[:, :3], source[:n, :3]) if m > 2 else x]
    yield "renorm", lambda: x.renorm(1, 0, 0.5)
    yield "median", lambda: [x.median(0).values, x.sort(0).values, x.topk(min(3, n), 0).values]
    yield "amax", lambda: [x.amax(0), x.amin(1), x.max(), x.argmax(1), x.aminmax(dim=0).max]
    yield "inf norm", lambda: torch.linalg.vector_norm(x, float("inf"), 1)
    yield (
        "transform_bias_rescale_qkv",
        lambda: A._transform_bias_rescale_qkv(
            numbers(2, n, 12 * m, dtype=dtype), numbers(12 * m, dtype=dtype), 2
        ),
    )
    yield "weight_norm", lambda: A._weight_norm_interface(x, numbers(n, 1, dtype=dtype), 0)
    target = integers(m, n)
    log_p = -x.abs()
    for reduction in (0, 1, 2):
        grad = numbers(n, dtype=dtype) if reduction == 0 else numbers(1, dtype=dtype)[0]
        yield (
            f"nll_loss backward {reduction}",
            lambda grad=grad, r=reduction: A.nll_loss_backward(
                grad, log_p, target, log_p[0].abs(), r, -100, torch.tensor(3.3, dtype=dtype)
            ),
        )
    for loss in (F.multi_margin_loss, F.multilabel_soft_margin_loss):
        yield (
            loss.__name__,
            lambda loss=loss: with_gradients(
                lambda x: loss(x, target if loss is F.multi_margin_loss else (x > 0).to(dtype).detach()), x
            ),
        )
    yield (
        "multilabel_margin_loss",
        lambda: with_gradients(lambda x: F.multilabel_margin_loss(x, integers(m, n, m)), x),
    )


def histograms(n, m, dtype):
    x = numbers(n, m, dtype=dtype)
    yield "histc", lambda: torch.histc(x, 10, -2, 2)
    yield "histogram", lambda: torch.histogram(x, 10, range=(-2.0, 2.0))[0]


def images(channels, height, width, dtype, last):
    x = numbers(2, channels, height, width, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    row, volume = x[:, :, 0].contiguous(), x.unsqueeze(2).expand(-1, -1, 3, -1, -1).contiguous()
    small = min(height, width) > 3
    yield "avg_pool2d", lambda: with_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    yield (
        "avg_pool2d no pad count",
        lambda: with_gradients(lambda x: F.avg_pool2d(x, (2, 3), 1, 1, count_include_pad=False), x),
    )
    yield "avg_pool1d", lambda: with_gradients(lambda x: F.avg_pool1d(x, 3, 2, 1), row)
    yield "avg_pool3d", lambda: with_gradients(lambda x: F.avg_pool3d(x, (2, 3, 3), 1, 1), volume)
    yield "adaptive_avg_pool2d", lambda: with_gradients(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), x)
    yield "adaptive_avg_pool2d 1", lambda: with_gradients(lambda x: F.adaptive_avg_pool2d(x, 1), x)
    yield "adaptive_avg_pool3d", lambda: with_gradients(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), volume)
    yield "max_pool2d", lambda: with_gradients(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    yield "max_pool3d", lambda: with_gradients(lambda x: F.max_pool3d(x, 3, 1, 1), volume)
    yield "adaptive_max_pool2d", lambda: with_gradients(lambda x: F.adaptive_max_pool2d(x, (3, 2)), x)
    yield (
        "fractional_max_pool2d",
        lambda: with_gradients(
            lambda x: F.fractional_max_pool2d(
                x, 2, (2, 2), _random_samples=torch.full((2, channels, 2), 0.4, dtype=dtype)
            ),
            x,
        ),
    )
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        for corners in (False, True) if mode in ("bilinear", "bicubic") else (None,):
            for size in ((2 * height, 3 * width), (height // 2 + 1, width // 2 + 1)):
                yield (
                    f"interpolate {mode} {corners} {'up' if size[0] > height else 'down'}",
                    lambda mode=mode, corners=corners, size=size: with_gradients(
                        lambda x: F.interpolate(x, size, mode=mode, align_corners=corners), x
                    ),
                )
    for mode in ("bilinear", "bicubic"):
        yield (
            f"interpolate antialias {mode}",
            lambda mode=mode: with_gradients(
                lambda x: F.interpolate(x, (height // 2 + 1, width // 2 + 1), mode=mode, antialias=True), x
            ),
        )
    yield (
        "interpolate linear",
        lambda: with_gradients(lambda x: F.interpolate(x, 2 * width + 1, mode="linear"), row),
    )
    yield (
        "interpolate trilinear",
        lambda: with_gradients(
            lambda x: F.interpolate(x, (4, height + 2, 2 * width), mode="trilinear"), volume
        ),
    )
    grid = numbers(2, height + 1, width + 2, 2, seed=3, dtype=dtype)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield (
                f"grid_sample {mode} {padding}",
                lambda mode=mode, padding=padding: with_gradients(
                    lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=False), x, grid
                ),
            )
    wide_grid = numbers(2, 3, height, width, 3, seed=3, dtype=dtype)
    yield (
        "grid_sample 3d",
        lambda: with_gradients(
            lambda x, g: F.grid_sample(x, g, "bilinear", align_corners=False), volume, wide_grid
        ),
    )
    yield (
        "unfold, fold",
        lambda: with_gradients(lambda x: F.fold(F.unfold(x, 3, padding=1), (height, width), 3, padding=1), x),
    )
    for mode in ("reflect", "replicate", "circular"):
        if small:
            yield (
                f"pad {mode}",
                lambda mode=mode: with_gradients(lambda x: F.pad(x, (2, 1, 1, 2), mode=mode), x),
            )
    yield "pixel_shuffle", lambda: F.pixel_shuffle(x[:, : channels // 4 * 4], 2) if channels > 3 else x
    yield "local_response_norm", lambda: F.local_response_norm(x, 3)


def cases(large):
    """(group, name, call): `group` is the op's name in the lists."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        shapes = [(5, 3), (9, 17), (12, 64), (33, 100)] + ([(300, 70), (2000, 129)] if large else [])
        for n, m in shapes:
            for name, call in indexed(n, m, dtype):
                yield name, (str(dtype)[6:], n, m), call
            if dtype in (torch.float32, torch.float64):
                for name, call in histograms(n, m, dtype):
                    yield name, (str(dtype)[6:], n, m), call
        sizes = [(3, 5, 7), (17, 8, 9), (4, 20, 33)] + ([(64, 40, 47)] if large else [])
        for channels, height, width in sizes:
            for last in (False, True):
                for name, call in images(channels, height, width, dtype, last):
                    yield name, (str(dtype)[6:], channels, height, width, last), call


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(value):
    tensors = value if isinstance(value, (list, tuple)) else [value]
    hasher = xxhash.xxh3_64()
    for tensor in tensors:
        hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().view(_WORDS[tensor.element_size()]).numpy().tobytes())
    return hasher.hexdigest()


def run(large):
    found = {}
    for name, where, call in cases(large):
        try:
            found[f"{name} {where}"] = digest(call())
        except (RuntimeError, ValueError, NotImplementedError, IndexError) as error:
            found[f"{name} {where}"] = f"raises {type(error).__name__}"
    return found


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = []
    for count in sys.argv[2].split(","):
        torch.set_num_threads(int(count))
        found.append(run(sys.argv[1] == "large"))
    json.dump(found, sys.stdout)
