"""RNN, LSTM and GRU whose dropout between the layers is drawn from the module's key."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from samebits.nn._layer_keys import OwnsRandomness
from samebits.nn._masks import dropout, probability

Hidden = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class _Recurrent(OwnsRandomness, torch.nn.RNNBase):
    """In training with dropout, runs torch's forward layer by layer, with a keyed dropout in between.

    One key per call; the dropout after layer i is a fold of it by i. On CUDA, cuDNN gets one layer at a time.
    """

    def forward(self, input: Any, hx: Hidden | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Runs torch's forward: input (L, N, H), (N, L, H), (L, H) or packed; returns output and state."""
        p = probability(self, self.dropout)
        if not self.training or p == 0.0 or self.num_layers == 1:
            return super().forward(input, hx)
        return self._run_layers(input, hx, p)

    def _run_layers(self, input: Any, hx: Hidden | None, p: float) -> tuple[Any, Any]:  # noqa: A002
        self._check_layers(hx)
        keys = self.next_keys(_data(input).device, self.num_layers - 1)
        output, hidden = input, []
        for number in range(self.num_layers):
            if number:
                output = _with_data(output, dropout(keys[number - 1], _data(output), p))
            output, state = super(_Recurrent, self._layer(number)).forward(
                output, self._initial_state(hx, number)
            )
            hidden.append(state)
        if isinstance(hidden[0], tuple):
            return output, tuple(torch.cat(states) for states in zip(*hidden, strict=True))
        return output, torch.cat(hidden)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _layer(self, number: int) -> Any:
        """Returns a module with a single layer of this one: same parameters, hooks and parametrizations."""
        layer = type(self).__new__(type(self))  # copy.copy refuses parametrized modules
        vars(layer).update(vars(self))
        per_layer = len(self._flat_weights_names) // self.num_layers
        names = self._flat_weights_names[number * per_layer : (number + 1) * per_layer]
        weights = [getattr(self, name) for name in names]
        vars(layer).update(
            num_layers=1,
            dropout=0.0,
            _flat_weights_names=names,
            _flat_weights=weights,
            _flat_weight_refs=[weakref.ref(weight) for weight in weights],
        )
        if number:
            vars(layer)["input_size"] = self._directions * (self.proj_size or self.hidden_size)
        return layer

    def _initial_state(self, hx: Hidden | None, number: int) -> Hidden | None:
        if hx is None:
            return None
        rows = slice(number * self._directions, (number + 1) * self._directions)
        return tuple(state[rows] for state in hx) if isinstance(hx, tuple) else hx[rows]  # type: ignore[return-value]

    def _check_layers(self, hx: Hidden | None) -> None:
        """Raises if the state has another number of layers, which slices would hide; torch's words."""
        expected = self.num_layers * self._directions
        for state in hx if isinstance(hx, tuple) else () if hx is None else (hx,):
            if state.size(0) != expected:
                raise RuntimeError(f"Expected hidden size ({expected}, ...), got {list(state.shape)}")


class RNN(_Recurrent, torch.nn.RNN):
    """`torch.nn.RNN` that owns the randomness of its dropout. Arguments as torch's, and `name`.

    Example:
        >>> layer, x = samebits.nn.RNN(3, 4, num_layers=2, dropout=0.5), torch.ones(5, 3)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> output, state = layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x)[0], output), torch.equal(layer(x)[0], output)
        (True, False)
    """


class LSTM(_Recurrent, torch.nn.LSTM):
    """`torch.nn.LSTM` that owns the randomness of its dropout. Arguments as torch's, and `name`.

    Example:
        >>> layer, x = samebits.nn.LSTM(3, 4, num_layers=2, dropout=0.5), torch.ones(5, 3)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> output, (hidden, cell) = layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x)[0], output), torch.equal(layer(x)[0], output)
        (True, False)
    """


class GRU(_Recurrent, torch.nn.GRU):
    """`torch.nn.GRU` that owns the randomness of its dropout. Arguments as torch's, and `name`.

    Example:
        >>> layer, x = samebits.nn.GRU(3, 4, num_layers=2, dropout=0.5), torch.ones(5, 3)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> output, state = layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x)[0], output), torch.equal(layer(x)[0], output)
        (True, False)
    """


def _data(sequence: Any) -> torch.Tensor:
    return sequence.data if isinstance(sequence, PackedSequence) else sequence


def _with_data(sequence: Any, data: torch.Tensor) -> Any:
    return sequence._replace(data=data) if isinstance(sequence, PackedSequence) else data
