"""`own_randomness`: a model's random layers become layers that own their randomness, in place."""

from __future__ import annotations

import functools
from typing import TypeVar

import torch
from torch.nn.utils.parametrize import is_parametrized

from samebits._inspect import user_code
from samebits.errors import UnimplementedError
from samebits.nn import _dropout as dropout
from samebits.nn import _multihead_attention as multihead_attention
from samebits.nn import _noise as noise
from samebits.nn import _rnn as rnn
from samebits.nn._layer_keys import OwnsRandomness, set_key
from samebits.random import _int_keys as int_keys

M = TypeVar("M", bound=torch.nn.Module)
_KEY = int_keys.as_uint64("samebits.nn.own_randomness")
_OURS: dict[type[torch.nn.Module], type[OwnsRandomness]] = {
    torch.nn.Dropout: dropout.Dropout,
    torch.nn.Dropout1d: dropout.Dropout1d,
    torch.nn.Dropout2d: dropout.Dropout2d,
    torch.nn.Dropout3d: dropout.Dropout3d,
    torch.nn.AlphaDropout: dropout.AlphaDropout,
    torch.nn.FeatureAlphaDropout: dropout.FeatureAlphaDropout,
    torch.nn.RReLU: noise.RReLU,
    torch.nn.FractionalMaxPool2d: noise.FractionalMaxPool2d,
    torch.nn.FractionalMaxPool3d: noise.FractionalMaxPool3d,
    torch.nn.MultiheadAttention: multihead_attention.MultiheadAttention,
    torch.nn.RNN: rnn.RNN,
    torch.nn.LSTM: rnn.LSTM,
    torch.nn.GRU: rnn.GRU,
}
_QUANTIZED = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.quantizable",
    "torch.nn.quantized",
    "torch.nn.quantizable",
)


def own_randomness(module: M, *, key: torch.Tensor | None = None) -> M:
    """Turns every random layer of torch in `module` into one of `samebits.nn`, in place; returns `module`.

    Replaced are Dropout*, AlphaDropout, FeatureAlphaDropout, RReLU, FractionalMaxPool*, MultiheadAttention
    (with it the Transformer's layers) and RNN, LSTM and GRU, which then draw as the table of
    `samebits.nn.OwnsRandomness` says. Only the class of an instance changes: parameters, optimizers, hooks,
    parametrizations, `requires_grad` and the keys of state_dict stay, and a checkpoint of the plain model
    loads, both ways. A layer at two paths is keyed by the first.

    Draws by other means are not seen: `F.dropout`, `F.scaled_dot_product_attention(dropout_p=...)` and
    `torch.rand` in a module's code. In the loop of a `Run` they are reproducible all the same (the generators
    are filled before each step), but depend on what else draws.

    Args:
        module: a model, before torch.compile. Calling this again is harmless.
        key: uint64 of shape (2,); outside a `Run` the layers then count their calls under (key, path).

    Raises:
        InvalidArgumentError: `key` is no key.
        UnimplementedError: a part is scripted, compiled or quantized. Nothing is changed then.
        DuplicateNameError: two layers have the same name.

    Warns:
        UserWarning: a subclass of a random layer has its own forward; it is not replaced.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5))
        >>> model = samebits.nn.own_randomness(model, key=samebits.random.key(1))
        >>> isinstance(model[1], samebits.nn.Dropout)
        True
        >>> model[0](torch.ones(6)), model[1](torch.ones(6))  # keyed by the layers' paths
        (tensor([0., 2., 0., 2., 0., 0.]), tensor([2., 2., 2., 0., 2., 0.]))
    """
    root = None if key is None else int_keys.fold(int_keys.from_tensor(key), _KEY)
    replacements, kept = {}, []
    for path, part in module.named_modules():
        _check_replaceable(path, part)
        base = _random_base(part)
        if base is None:
            continue
        if type(part).forward is base.forward and "forward" not in vars(part):  # type: ignore[attr-defined]
            replacements[part] = _replacement(type(part), base, parametrized=is_parametrized(part))
        else:
            kept.append(f"{path or 'the module'} ({type(part).__qualname__}, a {base.__name__})")
    for part, kind in replacements.items():
        part.__class__ = kind
    if kept:
        user_code.warn(
            f"own_randomness left alone: {', '.join(kept)}. Their own forward may draw by any means: derive "
            "them from samebits.nn, and draw from self.next_key(device)."
        )
    if root is not None:
        set_key(module, root)
    return module


def _random_base(part: torch.nn.Module) -> type[torch.nn.Module] | None:
    """Returns the random layer of torch that `part` is a kind of, unless it owns its randomness."""
    if isinstance(part, OwnsRandomness):
        return None
    return next((kind for kind in type(part).__mro__ if kind in _OURS), None)


@functools.cache
def _replacement(kind: type[torch.nn.Module], base: type[torch.nn.Module], *, parametrized: bool) -> type:
    """Returns our class, or one that has the additions of a user's subclass before it."""
    if kind is base:
        return _OURS[base]
    if parametrized:  # torch put a class of this instance in front; removing it takes its first base
        under = kind.__bases__[0]
        own = {name: value for name, value in vars(kind).items() if name not in {"__dict__", "__weakref__"}}
        return type(kind.__name__, (_replacement(under, base, parametrized=False),), own)
    return type(
        kind.__name__, (kind, _OURS[base]), {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )


def _check_replaceable(path: str, part: torch.nn.Module) -> None:
    name = type(part).__name__
    where = f"own_randomness: {path or 'the module'} ({name})"
    if isinstance(part, torch.jit.ScriptModule):
        raise UnimplementedError(
            f"{where} is TorchScript, whose layers are fixed. Call it before torch.jit.script."
        )
    if name == "OptimizedModule" or part._compiled_call_impl is not None:
        raise UnimplementedError(
            f"{where} is compiled already. Call it before: torch.compile(own_randomness(model))."
        )
    if type(part).__module__.startswith(_QUANTIZED):
        raise UnimplementedError(f"{where} is quantized, and draws by itself. Call it before quantization.")
