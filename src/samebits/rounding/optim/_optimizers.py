"""`AdamW` and `SGD` for weights of 16 bits: the walk over parameters, random numbers, dtypes of state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.rounding.optim import _streams, _update
from samebits.rounding.optim._update import HALVES, STATE_DTYPES

# The base of the optimizers: the walk over parameters, their random numbers, and state of a separate dtype.


class RoundingOptimizer(torch.optim.Optimizer):
    """Precedes a class of torch.optim, keeps its arguments, groups and state names, and replaces its step."""

    _rule: str
    _state_dtype: str

    def _init_rounding(self, state_dtype: torch.dtype, **given: Any) -> None:
        """Checks arguments before torch's `__init__` gets the parameters. `given`: arguments by name."""
        if state_dtype not in STATE_DTYPES:
            raise InvalidArgumentError(
                f"{self._what}: state_dtype must be torch.float32 or torch.bfloat16, got {state_dtype}"
            )
        for name in ("capturable", "differentiable"):
            if given.pop(name, False):
                raise UnimplementedError(
                    f"{self._what}({name}=True): steps are counted on the host, for the stream of random "
                    "numbers, and kernels are not recorded by autograd; leave it out"
                )
        _check_numbers(self._what, given)
        self._state_dtype = STATE_DTYPES[state_dtype]

    @property
    def _what(self) -> str:
        return f"samebits.rounding.optim.{type(self).__name__}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does. `InvalidArgumentError` unless all are bfloat16, float16 or float32."""
        _check_numbers(self._what, param_group)
        param_group.setdefault("state_dtype", getattr(self, "_state_dtype", "float32"))
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        names = [name for one in self.param_groups for name in one.get("param_names") or ()]
        if twice := [name for name in names if names.count(name) > 1] if len({*names}) < len(names) else []:
            self.param_groups.pop()
            raise InvalidArgumentError(
                f"{self._what}: two parameters are named {twice[0]!r}, so they would be rounded by the same "
                "random numbers; name each, as model.named_parameters() does"
            )
        for param in group["params"]:
            if param.dtype not in (*HALVES, torch.float32):
                self.param_groups.pop()
                raise InvalidArgumentError(
                    f"{self._what}: parameters are bfloat16, float16 or float32; got {param.dtype} of shape "
                    f"{tuple(param.shape)}; use torch.optim for it"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state_dict of torch.optim has none
            group.setdefault("state_dtype", "float32")
        if not hasattr(self, "_state_dtype"):  # a copy: torch's __getstate__ leaves it out
            self._state_dtype = self.param_groups[0]["state_dtype"]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads as torch does, but state keeps its saved dtype; torch casts it to the parameter's."""
        super().load_state_dict(dict(state_dict))
        parameters = [p for group in self.param_groups for p in group["params"]]
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        for number, param in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    device = "cpu" if name == "step" else param.device
                    self.state[param][name] = value.detach().to(device, copy=True)

    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs one step of all parameters that have a gradient; returns the loss, if `closure` computes it.

        Raises, before anything is changed, `UnseededError` without a seed (bfloat16 and float16 parameters
        round by it) and `UnimplementedError` for sparse gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = list(self._with_gradient())
        rounds = any(p.dtype in HALVES for _, _, p in work)
        base = _streams.process_key(f"{self._what}.step() draws") if rounds else (0, 0)
        jobs = []
        for group, name, param in work:
            state, numbers = self._prepare(group, param)
            tensors: list[Any] = [param, param.grad, *state]
            shard: list[int] = []
            if hasattr(param, "to_local"):
                tensors, shard = [_streams.local(t, param) for t in tensors], _streams.shard(param)
            jobs.append(_update.ParameterUpdate(tensors, self.state[param]["step"], (name, shard), numbers))
        if _len_torch_dispatch_stack():
            _update.update_in_graph(self._rule, jobs)
        elif jobs:
            torch._foreach_add_([job.step for job in jobs], 1)
            _update.update(self._rule, jobs, base)
        return loss

    def _with_gradient(self) -> Iterator[tuple[dict[str, Any], int | str, torch.Tensor]]:
        """Yields (group, name or number, parameter); numbers count over all groups, as in a state_dict."""
        number = 0
        for group in self.param_groups:
            names = group.get("param_names") or range(number, number + len(group["params"]))
            number += len(group["params"])
            for name, param in zip(names, group["params"], strict=True):
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    raise UnimplementedError(
                        f"{self._what}: parameter {name!r} has a sparse gradient; build its layer with "
                        "sparse=False"
                    )
                yield group, name, param

    def _prepare(self, group: dict[str, Any], param: Any) -> tuple[list[torch.Tensor], Sequence[float]]:
        """Returns the state of a parameter, created if need be, and the numbers of the rule."""
        raise NotImplementedError


def new_state(param: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """Returns zeros for a tensor of state, sharded as the parameter; float32 for float32 parameters."""
    dtype = torch.float32 if param.dtype is torch.float32 else getattr(torch, group["state_dtype"])
    return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)


def _check_numbers(caller: str, given: Mapping[str, Any]) -> None:
    for name in ("lr", "betas", "momentum", "dampening", "weight_decay", "eps"):
        value = given.get(name, 0)
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, torch.Tensor):
                raise InvalidArgumentError(
                    f"{caller}: {name} must be a number, got a tensor; give float({name}), and let a "
                    "scheduler change it"
                )


class AdamW(RoundingOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` in float32 arithmetic; bfloat16 and float16 weights are rounded stochastically.

    On average no update is lost, however small it is beside its weight. Replicas stay bitwise equal (the
    random numbers depend on seed, step and parameter; one seed on all ranks), shards of a DTensor round with
    separate numbers, and a run resumed from `state_dict` keeps the bits. float32 weights are not rounded.

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


class SGD(RoundingOptimizer, torch.optim.SGD):
    """`torch.optim.SGD` in float32 arithmetic; bfloat16 and float16 weights are rounded stochastically.

    As for `AdamW`; the state counts the steps, which torch's does not.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: as torch's, numbers.
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
