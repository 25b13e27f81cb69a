"""A case of the battery: inputs that are made once, and a function of them that is run again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

Run = Callable[[], Any]
"""Runs once; what it returns is compared by its bytes."""
Input = Callable[[torch.dtype], Any]
"""Makes one argument of a case for its dtype, always with the same values."""

F32, BF16, F64, F16 = torch.float32, torch.bfloat16, torch.float64, torch.float16
ALL_DTYPES = (F32, BF16, F64)
THREAD_COUNTS = (1, 2, 3, 4, 8)
_device: ContextVar[str] = ContextVar("device", default="cpu")


@dataclass(frozen=True)
class ReviewCase:
    """The work of one row of the battery."""

    group: str
    name: str
    build: Callable[[], Iterable[Run]]
    """Makes the inputs. A case with many small samples gives one `Run` for each."""
    repeats: int = 3
    """How often it runs at two threads."""
    source: str = "battery"
    """`battery`, `tails`, `sweep` or `opinfo`."""
    traced: bool = True
    """Whether its ops can be observed one by one; compiled code hides them."""
    counts: tuple[int, ...] = THREAD_COUNTS

    @property
    def full_name(self) -> str:
        """Unique among all cases; what `--only` is matched with."""
        return f"{self.group}: {self.name}"


@contextmanager
def built_on(device: str) -> Iterator[None]:
    """Puts the inputs of cases built inside on `device`; they are drawn on the CPU, for the same numbers."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def placed(value: Any) -> Any:
    """The tensors and modules in it on the device of `built_on`."""
    device = _device.get()
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Input:
    """Standard normal numbers times `scale` plus `shift`; another shape has other numbers."""
    return lambda dtype: _cast(_normal(shape) * scale + shift, dtype)


def positive(*shape: int) -> Input:
    """Absolute normal numbers plus 0.3."""
    return lambda dtype: _cast(_normal(shape).abs() + 0.3, dtype)


def cancelling(*shape: int) -> Input:
    """Normal numbers and their negatives in another order: the exact sum is 0, so that a sum of them is all rounding.

    Another order of summation shows even where the result is rounded to bfloat16.
    """
    count = math.prod(shape)

    def make(dtype: torch.dtype) -> torch.Tensor:
        half = _normal((count // 2,))
        mirrored = -half[torch.randperm(half.numel(), generator=_generator(shape))]
        return torch.cat([half, mirrored, half.new_zeros(count % 2)]).reshape(shape).to(dtype)

    return make


def integers(high: int, *shape: int) -> Input:
    """Uniform integers from 0 to `high` - 1: many duplicates when there are more of them than `high`."""
    return lambda _dtype: torch.randint(high, shape, generator=_generator(shape))


def mapped(function: Callable[..., Any], *inputs: Input) -> Input:
    """`function` of other inputs."""
    return lambda dtype: function(*(make(dtype) for make in inputs))


def forward(
    group: str,
    name: str,
    function: Callable[..., Any],
    *inputs: Input,
    dtypes: Iterable[torch.dtype] = (F32,),
    strided: bool = False,
    repeats: int = 3,
) -> Iterator[ReviewCase]:
    """One case per dtype that calls `function`; with `strided` a second one whose tensors are views with stride 2."""
    for dtype, layout, prepare in _variants(dtypes, strided=strided):

        def build(dtype: torch.dtype = dtype, prepare: Callable[[Any], Any] = prepare) -> Iterator[Run]:
            arguments = [prepare(placed(make(dtype))) for make in inputs]
            yield lambda: function(*arguments)

        yield ReviewCase(group, f"{name} [{_short(dtype)}{layout}]", build, repeats)


def backward(
    group: str, name: str, function: Callable[..., Any], *inputs: Input, **options: Any
) -> Iterator[ReviewCase]:
    """As `forward`, with the gradients of all floating-point tensors for a fixed random upstream gradient."""
    yield from forward(
        group, name, lambda *arguments: with_gradients(function, arguments), *inputs, **options
    )


def layer(
    group: str,
    name: str,
    make: Callable[[], torch.nn.Module],
    make_input: Input,
    dtypes: Iterable[torch.dtype],
) -> Iterator[ReviewCase]:
    """One case per dtype that calls a module: its outputs and the gradients of input and parameters."""
    for dtype in dtypes:

        def build(dtype: torch.dtype = dtype) -> Iterator[Run]:
            torch.manual_seed(0)
            module = placed(make().to(dtype))
            x = placed(make_input(dtype)).requires_grad_()

            def run() -> object:
                outputs = module(x)
                return outputs, gradients(outputs, [x, *module.parameters()])

            yield run

        yield ReviewCase(group, f"{name} [{_short(dtype)}]", build)


def with_gradients(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
    """The outputs of `function`, and the gradients of its floating-point tensor arguments."""
    leaves = [_leaf(argument) for argument in arguments]
    outputs = function(*leaves)
    return outputs, gradients(outputs, leaves)


def gradients(outputs: Any, inputs: Any) -> list[torch.Tensor | None]:
    """Gradients of all tensors in `inputs` that require one, for a fixed random gradient of each output."""
    ends = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    begins = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not ends or not begins:
        return []
    upstream = [_upstream(end) for end in ends]
    return list(torch.autograd.grad(ends, begins, upstream, allow_unused=True))


def _upstream(end: torch.Tensor) -> torch.Tensor:
    if end.layout is not torch.strided or end.is_nested:
        return torch.ones_like(end)
    return _drawn(end.shape, end.dtype, end.device).clone()


@lru_cache(maxsize=4)
def _drawn(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Kept, since drawing takes longer than most ops on a GPU."""
    return torch.randn(shape, generator=_generator(shape), dtype=dtype, device="cpu").to(device)


def _leaf(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
        return argument.detach().requires_grad_()
    return argument


def _variants(
    dtypes: Iterable[torch.dtype], *, strided: bool
) -> Iterator[tuple[torch.dtype, str, Callable[[Any], Any]]]:
    for dtype in dtypes:
        yield dtype, "", lambda value: value
        if strided:
            yield dtype, " strided", _every_second


def _every_second(value: Any) -> Any:
    """The same values in memory that lies two elements apart."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
        return torch.stack([value, value], -1)[..., 0]
    return value


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _normal(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=_generator(shape))


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


def _generator(shape: Iterable[int]) -> torch.Generator:
    return torch.Generator().manual_seed(1 + sum(shape))
