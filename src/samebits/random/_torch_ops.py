"""The stateless functions as ops of `torch.library`, for tracers and transforms of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samebits.random import _keys as keys
from samebits.random._draws import choices, integers, uniform_normal
from samebits.random._draws.dropout_function import differentiable, run
from samebits.random._draws.exponential_gumbel import transform
from samebits.random._keys import Rule, one_by_one
from samebits.random._memory import fresh

# The ops `samebits::*`. Each is pure, a function of its arguments, and has the bits of the direct call.
#
# | | |
# |---|---|
# | implementation | called by the public function where nothing is traced, on CPU and CUDA |
# | fake | shape, dtype and device of the result, for FakeTensorMode, compilers and the meta device |
# | vmap | the rules above |
# | autograd | `dropout` only: its mask is drawn again in backward; nothing else has a gradient |
#
# Arguments whose values a tracer does not know are checked when the op runs.


# Rules of torch.func.vmap: a batch of keys is one call of the op, which draws each row as if alone.
#
# The same key gives the same numbers, so that a key that is not batched draws the same for every sample.


def of_size(op: Any) -> Rule:
    """Returns the rule of an op (key, size, ...); one by one if another argument is a batch."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, size: list[int], *rest: Any
    ) -> tuple[torch.Tensor, int]:
        if any(dim is not None for dim in in_dims[2:]):
            return one_by_one(op)(info, in_dims, key, size, *rest)
        return op(_keys(key, in_dims[0], info.batch_size, len(size)), [info.batch_size, *size], *rest), 0

    return rule


def of_tensor(op: Any, trailing: int = 0) -> Rule:
    """Returns the rule of an op (key, size, x, ...): x broadcasts to the size but `trailing` dims."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, size: list[int], x: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, int]:
        keys = _keys(key, in_dims[0], info.batch_size, len(size))
        if in_dims[2] is not None:
            x = _pad_dims(x.movedim(in_dims[2], 0), 1, len(size) + trailing + 1)
        return op(keys, [info.batch_size, *size], x, *rest), 0

    return rule


def of_input(op: Any) -> Rule:
    """Returns the rule of an op (key, input, ...) that draws as many numbers as `input` has."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, given: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, int]:
        given = _batch_first(given, in_dims[1], info.batch_size)
        return op(_keys(key, in_dims[0], info.batch_size, given.dim() - 1), given, *rest), 0

    return rule


def of_keys(op: Any, out_dim: int = 0) -> Rule:
    """Returns the rule of an op (key, ...) with any batch of keys, which is at `out_dim` of its result."""

    def rule(info: Any, in_dims: Any, key: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
        return op(key.movedim(in_dims[0], 0), *rest), out_dim

    return rule


def of_folded(op: Any) -> Rule:
    """Returns the rule of an op (key, x), where x broadcasts to the batch of keys."""

    def rule(info: Any, in_dims: Any, key: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        key, x = (_batch_first(t, dim, info.batch_size) for t, dim in zip((key, x), in_dims, strict=True))
        dims = max(key.dim() - 1, x.dim())
        return op(_pad_dims(key, 1, dims + 1), _pad_dims(x, 1, dims)), 0

    return rule


def _batch_first(x: torch.Tensor, dim: int | None, number: int) -> torch.Tensor:
    return x.expand(number, *x.shape) if dim is None else x.movedim(dim, 0)


def _keys(key: torch.Tensor, dim: int | None, number: int, dims: int) -> torch.Tensor:
    """Returns one key per sample for an output of `dims` dimensions, or one batch of keys per sample."""
    keys = _batch_first(key, dim, number)
    return _pad_dims(keys, 1, dims + 2) if keys.dim() == 2 else keys


def _pad_dims(x: torch.Tensor, at: int, dims: int) -> torch.Tensor:
    """Inserts dimensions of size 1 at `at` until there are `dims`."""
    return x.reshape(*x.shape[:at], *[1] * (dims - x.dim()), *x.shape[at:])


LIBRARY = torch.library.Library("samebits", "DEF")
_OF_SIZE = "Tensor key, SymInt[] size"


def _define(
    schema: str,
    run: Callable[..., torch.Tensor],
    fake: Callable[..., torch.Tensor],
    rule: Callable[[Any], Rule],
) -> None:
    name = LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    qualified = f"samebits::{name}"
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=LIBRARY)
    torch.library.register_vmap(qualified, rule(getattr(torch.ops.samebits, name)), lib=LIBRARY)


def _empty_result(key: torch.Tensor, size: Sequence[int], *others: Any) -> torch.Tensor:
    """Returns an empty result of this size and, last of the arguments, dtype."""
    return key.new_empty(size, dtype=others[-1])


def _indices(key: torch.Tensor, size: Sequence[int], *others: Any) -> torch.Tensor:
    return key.new_empty(size, dtype=torch.int64)


def _draw(schema: str, run: Callable[..., torch.Tensor]) -> None:
    _define(f"{schema} -> Tensor", run, _empty_result, of_size)


def _filling(name: str, fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(key: torch.Tensor, size: Sequence[int], *parameters: Any) -> torch.Tensor:
        return fill(name, key, fresh(size, parameters[-1], key.device), *parameters[:-1])

    return run


def _randint(key: torch.Tensor, size: Sequence[int], low: int, last: int, dtype: torch.dtype) -> torch.Tensor:
    """Draws between two inclusive bounds; those of uint64 come as int64."""
    low = low % 2**64 if dtype is torch.uint64 else low
    return integers.integers("randint", key, size, low, (last - low) % 2**64 + 1, dtype)


_bernoulli = _filling("bernoulli", uniform_normal.fill_bernoulli)

_draw(f"bits({_OF_SIZE}, ScalarType dtype)", uniform_normal.stream)
_draw(
    f"uniform({_OF_SIZE}, float low, float high, ScalarType dtype)",
    _filling("uniform", uniform_normal.fill_uniform),
)
_draw(
    f"normal({_OF_SIZE}, float mean, float std, ScalarType dtype)",
    _filling("normal", uniform_normal.fill_normal),
)
_draw(f"bernoulli({_OF_SIZE}, float p, ScalarType dtype)", _bernoulli)
_draw(f"exponential({_OF_SIZE}, float rate, ScalarType dtype)", _filling("exponential", transform))
_draw(f"gumbel({_OF_SIZE}, float loc, float scale, ScalarType dtype)", _filling("gumbel", transform))
_draw(
    f"truncated_normal({_OF_SIZE}, float mean, float std, float low, float high, ScalarType dtype)",
    _filling("truncated_normal", transform),
)
_draw(f"randint({_OF_SIZE}, SymInt low, SymInt last, ScalarType dtype)", _randint)
_define(
    f"bernoulli_each({_OF_SIZE}, Tensor p, ScalarType dtype) -> Tensor", _bernoulli, _empty_result, of_tensor
)
_define(
    f"categorical({_OF_SIZE}, Tensor logits) -> Tensor",
    choices.indices_of,
    _indices,
    lambda op: of_tensor(op, trailing=1),
)
_define(f"choice({_OF_SIZE}, SymInt n, bool replace) -> Tensor", choices.choose, _indices, of_size)
_define(
    f"choice_weighted({_OF_SIZE}, Tensor weights, bool replace) -> Tensor",
    choices.choose_by_weight,
    _indices,
    of_size,
)
_define(
    "permutation(Tensor key, SymInt n) -> Tensor",
    integers.orders_of,
    lambda key, n: key.new_empty((*key.shape[:-1], n), dtype=torch.int64),
    of_keys,
)
_define(
    "permute_index(Tensor key, Tensor i, SymInt n) -> Tensor",
    integers.images_of,
    lambda _key, i, _n: i.new_empty(i.shape),
    one_by_one,
)
_define(
    "split(Tensor key, SymInt num) -> Tensor",
    keys.split_keys,
    lambda key, num: key.new_empty((num, *key.shape)),
    lambda op: of_keys(op, out_dim=1),
)
_define(
    "fold_in(Tensor key, SymInt data) -> Tensor",
    keys.fold_in_integer,
    lambda key, _data: key.new_empty(key.shape),
    of_keys,
)
_define(
    "fold_in_each(Tensor key, Tensor data) -> Tensor",
    keys.fold_in_each,
    lambda key, data: key.new_empty((*torch.broadcast_shapes(key.shape[:-1], data.shape), 2)),
    of_folded,
)
_define(
    "dropout(Tensor key, Tensor input, float p) -> Tensor",
    lambda key, given, p: run(given, key, p),
    lambda _key, given, _p: torch.empty_like(given),
    of_input,
)
LIBRARY.impl("dropout", differentiable, "Autograd")
