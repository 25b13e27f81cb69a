"""`SGD` for weights of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.rounding.optim._rounding_optimizer import RoundingOptimizer, new_state


class SGD(RoundingOptimizer, torch.optim.SGD):
    """`torch.optim.SGD` in float32 arithmetic; bfloat16 and float16 weights are rounded stochastically.

    As for `AdamW`; the state counts the steps, which torch's does not.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: as torch's; all numbers, no tensors.
        foreach, fused: accepted and ignored: one kernel passes over a parameter, or over all small ones.
        differentiable: refused if true.
        state_dtype: of momentum_buffer; bfloat16 saves memory, and is rounded stochastically, too.

    Raises as `AdamW`.

    Example:
        >>> samebits.set_random_seed(1)
        >>> for kind in torch.optim.SGD, samebits.rounding.optim.SGD:
        ...     weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
        ...     weight.grad = torch.ones_like(weight)
        ...     kind([weight], lr=1e-3).step()
        ...     print(int((weight < 1).sum()))
        0
        277
    """

    _rule = "SGD"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        self._init_rounding(state_dtype, differentiable=differentiable, **numbers)
        super().__init__(params, **numbers, nesterov=nesterov, maximize=maximize)

    def _prepare(self, group: dict[str, Any], param: Any) -> tuple[list[torch.Tensor], Sequence[float]]:
        state = self.state[param]
        begins = state.get("momentum_buffer") is None
        if "step" not in state:
            state["step"] = torch.tensor(0, device="cpu")
        if group["momentum"] and begins:
            state["momentum_buffer"] = new_state(param, group)
        numbers = (
            begins,
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            group["maximize"],
            group["nesterov"],
        )
        tensors = [state["momentum_buffer"]] if group["momentum"] else []
        return tensors, numbers
