"""TensorFlow's own determinism tests, by kind, on torch's counterparts: the ops of its `*_d9m_test` files and of its RFC.

Form, after those files: five times, each with upstream gradients of its own, value and gradients are computed again and
must have the same bits; here at thread counts 1, 2, 3, 4 and 8 as well.
"""

import pytest
import torch
import torch.nn.functional as F

import samebits
from op_testing import THREADS
from samebits._digest import of_value


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def below(limit, *shape):
    return torch.randint(limit, shape, generator=torch.Generator().manual_seed(limit))


def boxes(count):
    """Random boxes as sampling grids (count x 14 x 14 x 2), TensorFlow's crop-and-resize."""
    corner, size = randn(count, 1, 1, 2).tanh(), randn(count, 1, 1, 2).sigmoid()
    line = torch.linspace(0, 1, 14)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    return corner + size * grid


def segments(reduce):
    def run(data, ids):
        zeros = data.new_zeros(100, data.shape[1])
        total = zeros.index_add(0, ids, data)
        counts = data.new_zeros(100).index_add(0, ids, torch.ones(len(ids), dtype=data.dtype)).clamp(min=1)
        if reduce == "sum":
            return total
        if reduce == "sqrt":
            return total / counts.sqrt()[:, None]
        if reduce == "mean":
            return total / counts[:, None]
        return zeros.index_reduce(0, ids, data, reduce, include_self=False)

    return run


def segment_lengths(reduce):
    return lambda data: torch.segment_reduce(data, reduce, lengths=torch.full((128,), 64), axis=0)


def sparse_product(values, dense):
    where = below(500, 2, 20000)
    return torch.sparse.mm(torch.sparse_coo_tensor(where, values, (500, 500)), dense)


KINDS = {
    # nn_ops/bias_op_d9m_test
    "bias gradient, channels last": (lambda x, b: x + b, randn(32, 28, 28, 16), randn(16)),
    "bias gradient, channels first": (lambda x, b: x + b[:, None, None], randn(32, 16, 28, 28), randn(16)),
    "bias gradient of a linear layer": (F.linear, randn(4096, 64), randn(10, 64), randn(10)),
    # nn_ops/depthwise_conv_op_d9m_test, cudnn_deterministic_ops_test
    "depthwise convolution": (lambda x, w: F.conv2d(x, w, groups=32), randn(16, 32, 28, 28), randn(32, 1, 3, 3)),
    "convolution 1d": (F.conv1d, randn(16, 32, 500), randn(48, 32, 5)),
    "convolution 2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), randn(16, 16, 28, 28), randn(32, 16, 3, 3), randn(32)),
    "convolution 3d": (F.conv3d, randn(2, 8, 12, 20, 20), randn(8, 8, 3, 3, 3)),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2), randn(8, 16, 14, 14), randn(16, 8, 3, 3)),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2), randn(16, 16, 28, 28)),
    # nn_ops/xent_op_d9m_test, sparse_ops/sparse_xent_op_d9m_test
    "cross entropy, soft labels": (lambda x: F.cross_entropy(x, randn(5000, 100).softmax(1), reduction="none"), randn(5000, 100)),
    "cross entropy, class indices": (lambda x: F.cross_entropy(x, below(100, 5000), reduction="none"), randn(5000, 100)),
    "cross entropy, mean": (lambda x: F.cross_entropy(x, below(100, 5000)), randn(5000, 100)),
    # sparse_ops/sparse_tensor_dense_matmul_op_d9m_test
    "sparse times dense": (sparse_product, randn(20000), randn(500, 64)),
    # math_ops/segment_reduction_ops_d9m_test
    "segment sum": (segments("sum"), randn(20000, 16), below(100, 20000)),
    "segment mean": (segments("mean"), randn(20000, 16), below(100, 20000)),
    "segment sqrt": (segments("sqrt"), randn(20000, 16), below(100, 20000)),
    "segment prod": (segments("prod"), 1 + randn(5000, 16) / 100, below(100, 5000)),
    "segment amax": (segments("amax"), randn(20000, 16), below(100, 20000)),
    "sorted segment sum": (segment_lengths("sum"), randn(8192, 16)),
    "sorted segment mean": (segment_lengths("mean"), randn(8192, 16)),
    "sorted segment prod": (segment_lengths("prod"), 1 + randn(8192, 16) / 100),
    # ops/image_grad_d9m_test
    "nearest resize": (lambda x: F.interpolate(x, size=(50, 70), mode="nearest"), randn(8, 8, 28, 28)),
    "bilinear resize": (lambda x: F.interpolate(x, size=(50, 70), mode="bilinear"), randn(8, 8, 28, 28)),
    "bicubic resize": (lambda x: F.interpolate(x, size=(50, 70), mode="bicubic"), randn(8, 8, 28, 28)),
    "crop and resize, image and boxes": (
        lambda x, grid: F.grid_sample(x, grid, align_corners=True), randn(16, 8, 40, 40), boxes(16)),
    # gather's gradient (IndexedSlices), bincount, scatter, SVD, adjust_contrast, fake quantisation, fused batch norm
    "gather": (lambda x, i: x[i], randn(1000, 16), below(1000, 30000)),
    "embedding": (lambda w, i: F.embedding(i, w), randn(1000, 32), below(1000, 30000)),
    "scatter add": (lambda x, i, s: x.scatter_add(0, i, s), randn(1000), below(1000, 100000), randn(100000)),
    "scatter write": (lambda x, i, s: x.index_put((i,), s), randn(1000), below(1000, 100000), randn(100000)),
    "singular values": (torch.linalg.svdvals, randn(128, 96)),
    "adjust contrast": (lambda x: (x - x.mean((-1, -2), keepdim=True)) * 1.7, randn(8, 3, 200, 200)),
    "fake quantisation": (
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.detach(), z.int(), 0, 0, 255),
        randn(64, 3000), randn(64).abs() + 0.1, torch.zeros(64, dtype=torch.int64)),
    "batch norm, training": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), randn(32, 16, 28, 28), randn(16), randn(16)),
    "batch norm, evaluation": (
        lambda x, w, b: F.batch_norm(x, x.new_zeros(16), x.new_ones(16), w, b), randn(32, 16, 28, 28), randn(16), randn(16)),
    "CTC loss": (
        lambda x: F.ctc_loss(x.log_softmax(2), 1 + below(19, 16, 20), torch.full((16,), 100), torch.full((16,), 20)),
        randn(100, 16, 20)),
}  # fmt: skip


def value_and_gradients(run, inputs, trial):
    leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = run(*leaves)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(trial)).to(out.dtype)
    gradients = torch.autograd.grad(out, [x for x in leaves if x.requires_grad], upstream, allow_unused=True)
    return out.detach(), [x for x in gradients if x is not None]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=("float32", "bfloat16"))
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradients_repeat(kind, dtype):
    """Five times, with upstream gradients of its own: value and gradients repeat their bits, at every thread count."""
    run, *inputs = KINDS[kind]
    if dtype == torch.bfloat16:
        if kind in ("singular values", "fake quantisation", "sparse times dense", "CTC loss"):
            pytest.skip("torch has no bfloat16 kernel for it")
        inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="threads"):
        for trial, count in enumerate(THREADS):
            torch.set_num_threads(1)
            first = of_value(value_and_gradients(run, inputs, trial))
            torch.set_num_threads(count)
            assert of_value(value_and_gradients(run, inputs, trial)) == first, f"{kind} at {count} threads"


def test_the_configurations_can_differ():
    """Negative control: without the switch, gather's gradient and a plain convolution's differ in this very test."""
    for kind in ("gather", "convolution 2d"):
        run, *inputs = KINDS[kind]
        seen = set()
        for count in THREADS:
            torch.set_num_threads(count)
            seen |= {of_value(value_and_gradients(run, inputs, 0)) for _ in range(3)}
        assert len(seen) > 1, kind


def test_every_output_of_ctc_loss_is_written():
    """CTC loss keeps a table with places that torch leaves unwritten; under the switch they repeat, without it they do not."""
    likelihoods, targets = randn(50, 4, 20).log_softmax(2), 1 + below(19, 4, 30)
    kept = []

    def table(turn):
        # what lies in memory differs from turn to turn: in places of the size that the table takes
        filled = [torch.empty(4, 50, 2 * 30 + 1).fill_(float(turn)) for _ in range(64)]
        kept.append(filled.pop(0))  # so that the next table lies elsewhere
        del filled
        found = torch.ops.aten._ctc_loss(likelihoods, targets, [50, 40, 10, 5], [30, 20, 3, 2])[1]
        assert found.shape == (4, 50, 2 * 30 + 1)
        return of_value(found)

    assert len({table(turn) for turn in range(20)}) > 1
    with samebits.enable_op_determinism(across="threads"):
        assert len({table(turn) for turn in range(20)}) == 1
