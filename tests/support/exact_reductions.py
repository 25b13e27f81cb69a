"""Torch's own kernels that add, choose or interpolate and keep their bits on every machine: each with the reason.

Names are functional forms without `aten::`; one without an overload stands for all of its overloads, and in-place and out
forms follow. They were compared with AVX2 and AVX-512, on 1 and 3 threads and under an emulated Haswell by
`tests/support/exact_cases.py`, under torch's deterministic algorithms (else index_put adds in the order of threads).
"""

from __future__ import annotations

_CHOICE = "compares and chooses: nothing is rounded"
_ORDER = "adds one after the other, in the order of indices, without products"
_SEQUENCE = "one element after the other along the dimension, in float64 for float32"
_WINDOW = "adds the elements of a window in a fixed order, in code that has no wider form for AVX-512 or computes each alike"
_WEIGHTS = "weights and sums of a place in a fixed order: the same code with AVX2 and AVX-512, and no library"
_SINGLE = "one IEEE operation after the other on each element, none of them fused"

EXACT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("all", "any", "amax", "amin", "aminmax", "argmax", "argmin", "max", "min", "count_nonzero"),
            *("sort", "topk", "kthvalue", "mode", "median", "nanmedian", "cummax", "cummin"),
            *("_cummax_helper", "_cummin_helper", "_fused_sdp_choice"),
        ),
        _CHOICE + " (a NaN keeps the payload of its input)",
    ),
    **dict.fromkeys(
        (
            *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"),
            *("adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
        ),
        _CHOICE,
    ),
    **dict.fromkeys(
        (
            *("index_add", "scatter_add", "index_put", "_index_put_impl", "put", "_unsafe_index_put"),
            *("embedding_dense_backward", "_embedding_bag_backward", "unfold_backward", "masked_scatter"),
            *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
            *("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
            *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
            *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
            *("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
            *("im2col", "col2im", "bincount", "as_strided_scatter", "embedding_renorm"),
        ),
        _ORDER,
    ),
    **dict.fromkeys(
        ("scatter_reduce", "scatter.reduce", "scatter.value_reduce", "index_reduce"),
        _ORDER + "; a mean is one division more",
    ),
    **dict.fromkeys(
        ("segment_reduce", "_segment_reduce_backward"),
        "one element after the other, each sum or product of its own, none of them fused",
    ),
    **dict.fromkeys(("cumsum", "cumprod", "trace"), _SEQUENCE),
    **dict.fromkeys(
        (
            *("avg_pool2d", "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward"),
            *("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
            *("_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward"),
            *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_avg_pool3d_backward"),
        ),
        _WINDOW,
    ),
    **dict.fromkeys(
        (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
            *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
            *("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
            *("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward"),
            *("_upsample_nearest_exact3d_backward", "upsample_linear1d", "upsample_linear1d_backward"),
            *("upsample_bilinear2d", "upsample_bilinear2d_backward", "upsample_bicubic2d"),
            *("upsample_bicubic2d_backward", "upsample_trilinear3d", "upsample_trilinear3d_backward"),
            *("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward"),
            *("_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward"),
        ),
        _WEIGHTS,
    ),
    **dict.fromkeys(
        (
            *("nll_loss_backward", "nll_loss2d_backward", "_transform_bias_rescale_qkv"),
            *("multilabel_margin_loss_backward", "histc", "renorm"),
        ),
        _SINGLE,
    ),
    **dict.fromkeys(
        ("multilabel_margin_loss_forward", "multi_margin_loss", "multi_margin_loss_backward"),
        "scalar code, one class after the other; not for other powers than 1 and 2",
    ),
}
"""Reasons by name."""

NEEDS_OURS: dict[str, str] = {
    "embedding_renorm": "norm.Scalar, and with it linalg_vector_norm",
    "renorm": "linalg_vector_norm and mul.out",
    "logsumexp": "amax, exp, sum.dim_IntList and log",
    "dist": "sub and norm",
    "_safe_softmax": "softmax",
    "logcumsumexp": "_logcumsumexp",
    "_weight_norm": "_weight_norm_interface, or norm_except_dim",
    "_fused_rms_norm": "a composite on the CPU: pow, mean, rsqrt and mul",
    "_transformer_encoder_layer_fwd": "_native_multi_head_attention, native_layer_norm, _addmm_activation, addmm",
    "norm.ScalarOpt_dim": "linalg_vector_norm.out",
    "norm.ScalarOpt_dim_dtype": "linalg_vector_norm.out",
    "native_layer_norm.out": "native_layer_norm, as every form that torch generates",
}
"""Torch's code that calls covered ops through the dispatcher, and which."""

REFUSED: dict[str, str] = {
    "_fused_moving_avg_obs_fq_helper": "quantization",
    "linalg_svdvals": "LAPACK: norms of matrices of the orders 2, -2 and nuclear need it",
}
"""Reductions whose kernel follows what a machine or a system chooses, and that have none of ours."""
