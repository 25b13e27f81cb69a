"""`AdamW` for weights of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.rounding.optim._rounding_optimizer import RoundingOptimizer, new_state


class AdamW(RoundingOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` in float32 arithmetic; bfloat16 and float16 weights are rounded stochastically.

    On average no update is lost, however small it is beside its weight. Replicas stay bitwise equal (the random numbers
    depend on seed, step and parameter; one seed on all ranks), shards of a DTensor round with separate numbers, and a run
    resumed from `state_dict` continues with the same bits. float32 weights are not rounded.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, maximize: as torch's; all numbers, no tensors.
        foreach, fused: accepted and ignored: one kernel passes over a parameter, or over all small ones.
        capturable, differentiable: refused if true.
        state_dtype: of exp_avg and exp_avg_sq; bfloat16 saves memory, and is rounded stochastically, too.

    Raises `InvalidArgumentError` for tensors as numbers and for parameters or state of other dtypes,
    `UnimplementedError` for refused options. Everything else is torch's.

    Example:
        >>> samebits.set_random_seed(1)
        >>> for kind in torch.optim.AdamW, samebits.rounding.optim.AdamW:
        ...     weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
        ...     weight.grad = torch.ones_like(weight)
        ...     kind([weight], lr=1e-3).step()
        ...     print(bool((weight < 1).any()))
        False
        True
    """

    _rule = "AdamW"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self._init_rounding(state_dtype, capturable=capturable, differentiable=differentiable, **numbers)
        super().__init__(params, **numbers, amsgrad=amsgrad, maximize=maximize)

    def _prepare(self, group: dict[str, Any], param: Any) -> tuple[list[torch.Tensor], Sequence[float]]:
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0, device="cpu")
            state["exp_avg"], state["exp_avg_sq"] = new_state(param, group), new_state(param, group)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = new_state(param, group)
        numbers = group["lr"], *group["betas"], group["eps"], group["weight_decay"], group["maximize"]
        tensors = [state["exp_avg"], state["exp_avg_sq"]]
        if group["amsgrad"]:
            tensors.append(state["max_exp_avg_sq"])
        return tensors, numbers
