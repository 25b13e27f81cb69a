"""Class rules: a verdict for every overload that has no line in `own.toml`. The first that matches counts.

A rule looks at the facts in the snapshot only. A measurement raises or lowers its verdict afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from samebits.determinism.table._overload_facts import OverloadRow
from samebits.determinism.table._verdict_names import DETERMINISTIC, OVER_THREADS, UNWRITTEN


@dataclass(frozen=True)
class Rule:
    """A class of overloads with one verdict and one reason."""

    name: str
    reason: str
    names: str = ""
    """A regular expression (verbose) for the whole name of the op, without overload and last underscore."""
    traits: frozenset[str] = frozenset()
    """Or one of these traits."""
    verdict: str = DETERMINISTIC
    evidence: str = "none"
    """`source`: torch's tag or schema says it, or the op's definition implies it. `none`: not checked."""

    def matches(self, name: str, traits: frozenset[str]) -> bool:
        """Returns True if an op of this name, with these traits, is of this class."""
        return not self.traits.isdisjoint(traits) or _pattern(self.names).fullmatch(name) is not None


@cache
def _pattern(names: str) -> re.Pattern[str]:
    return re.compile(names or r"(?!)", re.VERBOSE)


def rule_of(row: OverloadRow, functional: OverloadRow) -> Rule:
    """Returns the class of an overload; an in-place or out form has the traits of the functional form too."""
    packet = functional.name.partition(".")[0]
    name = packet if packet.startswith("__") else packet.rstrip("_")
    traits = frozenset((*row.traits, *functional.traits))
    return next(rule for rule in RULES if rule.matches(name, traits))


_ROUNDING = "the vector body and the scalar tail of a thread's share may round differently"

RULES = (
    Rule(
        "unwritten",
        "gives memory that nobody wrote: the switch has torch fill it, with NaN or the largest integer "
        "(fill_uninitialized_memory)",
        r"_?empty(_.*)? | new_empty(_strided)? | _?resize(_as|_output)?",
        verdict=UNWRITTEN,
        evidence="source",
    ),
    Rule(
        "random",
        "draws from a generator: the same seed gives the same draws",
        traits=frozenset({"nondeterministic_seeded"}),
        evidence="source",
    ),
    Rule(
        "keyed draw",
        "a counter-based draw: each element is a function of the key and of its place",
        r"_philox_.*",
        verdict=OVER_THREADS,
        evidence="source",
    ),
    Rule(
        "view",
        "a view, or the copy of one: nothing is computed",
        traits=frozenset({"view", "view_copy", "inplace_view"}),
        verdict=OVER_THREADS,
        evidence="source",
    ),
    Rule(
        "fill",
        "every element is given its value without arithmetic",
        r"""(new_)?(zeros|ones|full)(_like)? | fill | zero | eye | scalar_tensor | tri[ul]_indices
        | _new_zeros_.* | _efficientzerotensor""",
        verdict=OVER_THREADS,
        evidence="source",
    ),
    Rule(
        "metadata",
        "reads or sets what a tensor is, or asserts something of it: nothing is computed",
        r"""is_(coalesced|pinned|same_size|set_to) | _has_same_storage_numel | _?dim[IV] | (dense|sparse)_dim
        | _?nnz | _coalesced | name | q_(scale|zero_point|per_channel_.*) | qscheme | set
        | (set|shallow_copy)_data | record_stream | lift | _pin_memory | _use_(cudnn|miopen)_.* | sym_.*
        | _functional_(assert|sym)_.* | _assert_.* | _print | _make_dep_token | _linalg_check_errors
        | _validate_.* | sparse_resize.*""",
        verdict=OVER_THREADS,
        evidence="source",
    ),
    Rule(
        "copy",
        "each output element is copied or cast from one input element, or chosen between two",
        r"""copy | clone | _to_copy | _copy_from.* | _reshape_copy | _lazy_clone | cat | _?stack | _chunk_cat
        | block_diag | repeat | roll | flip | rot90 | tri[ul] | constant_pad_nd | pixel_(un)?shuffle
        | (native_)?channel_shuffle | index | _unsafe_index | _unsafe_masked_index | index_select | gather
        | take | masked_select | masked_fill | index_fill | where | im2col | diag_embed | embedding
        | repeat_interleave | (reflection|replication)_pad\dd | (slice|select|diagonal|as_strided)_scatter
        | (slice|select|diagonal)_backward | unsafe_split.* | int_repr | nonzero(_static)?
        | _local_scalar_dense | _?upsample_nearest(_exact)?\dd""",
        verdict=OVER_THREADS,
        evidence="source",
    ),
    Rule(
        "foreach",
        f"the same op over a list of tensors; {_ROUNDING}",
        r"_foreach_.* | _fused_(sgd|adam|adamw|adagrad|rmsprop).* | _amp_.*",
    ),
    Rule(
        "backend",
        "a kernel for one vendor's library or one number format",
        r"""_?(cudnn|miopen|mkldnn|mps|nnpack|cslt|fbgemm|xpu|mkl)_.* | to_mkldnn.* | lstm_mps_.* | _triton_.*
        | .*quantize.* | quantized_.* | _make_per_\w+_quantized_tensor | _dyn_quant.* | .*int[48].*
        | .*semi_structured.* | _scaled_(grouped_|add)?mm.* | _mixed_dtypes_linear""",
    ),
    Rule(
        "sparse or nested",
        "a kernel for sparse, nested or ragged layouts",
        r".*(sparse|nested|jagged|padded|coalesce|spdiags|spsolve|hspmm).* | _to_dense | _convert_indices_.*",
    ),
    Rule(
        "pointwise",
        f"each output element is computed from its own inputs; {_ROUNDING}",
        r"""(elu|hard\w+|leaky_relu|softplus|softshrink|glu|gelu|silu|mish|rrelu_with_noise)_backward
        | _prelu_kernel(_backward)? | log_sigmoid_(forward|backward) | glu_(backward_)?jvp | glu | hardswish
        | _add_relu | arange | range | linspace | logspace | \w+_window | complex | polar | rsub
        | floor_divide | bucketize | searchsorted | isin | _masked_scale | leaky_relu | _conj_physical""",
        traits=frozenset({"pointwise"}),
        evidence="source",
    ),
    Rule(
        "linalg",
        "LAPACK: blocked algorithms, whose order of summation may depend on the thread count",
        r"""_?linalg_.* | _?cholesky.* | geqrf | ormqr | lu_unpack | triangular_solve
        | _compute_linear_combination""",
    ),
    Rule(
        "matmul",
        "BLAS: the sum over a long dimension may be split by the thread count",
        r"(add)?(mm|mv|bmm|r) | baddbmm | v?dot | _addmm_.* | _grouped_mm | (linear|matmul).* | _trilinear",
    ),
    Rule(
        "convolution",
        "the weight gradient is a sum over batch and place, which may be split by the thread count",
        r".*conv(olution)?(\d?d|_.*)? | _?slow_conv.*",
    ),
    Rule(
        "window",
        "each output is a sum or a choice over a window; gradients add up where windows overlap",
        r".*(pool\dd|upsample|_pad\dd|grid_sampler|affine_grid|unfold|col2im).*",
    ),
    Rule(
        "normalisation",
        "statistics are sums over a dimension, and so are the gradients of weight and bias",
        r".*(_norm|softmax|renorm).*",
    ),
    Rule(
        "indexed write",
        "writes or adds at indices: what duplicates give depends on their order",
        r"""index_.* | scatter.* | put | masked_scatter.* | _(unsafe|index)_.* | _?embedding.* | _?segment_.*
        | _?hist.* | bincount""",
    ),
    Rule(
        "order",
        "compares without computing; which of equal elements is chosen depends on the algorithm",
        r"sort | topk | kthvalue | mode | (nan)?median | _?unique.* | _?cum(max|min).* | _aminmax",
    ),
    Rule("scan", "sums along a dimension, one after the other", r"_?(log)?cum(sum|prod|sumexp) | trace"),
    Rule(
        "reduction",
        "a sum over elements, which may be split by the thread count",
        r""".*_loss\w* | binary_cross_entropy\w* | allclose | hash_tensor | _is_a(ny|ll)_true | native_norm
        | _?[cp]dist.* | dist | _euclidean_dist""",
        traits=frozenset({"reduction"}),
    ),
    Rule("fft", "the vendor's plan may depend on the thread count", r"_?fft_.*"),
    Rule("other", "no class rule says anything of it", r".*"),
)
