"""Numba's type of a vector whose number of lanes is part of a kernel's definition; LLVM cuts it into what the machine has.

The instructions on vectors are in `vectors`; imported with Numba, by the first @instruction that is compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_model


class VectorType(types.Type):
    """Some lanes of one scalar type."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"vector({element} x {lanes})")


@register_model(VectorType)
class _VectorModel(PrimitiveModel):
    """A vector is LLVM's vector, in registers and in memory."""

    def __init__(self, manager: Any, vector: Any) -> None:
        element = manager.lookup(vector.element).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


@cache
def vector(element: str, lanes: int) -> VectorType:
    """Returns the type of that many lanes of a type of that name in Numba."""
    return VectorType(getattr(types, element), lanes)


def _arithmetic(operation: Any, build: Callable[[Any], Any]) -> None:
    """Gives vectors an operator, lane by lane."""

    class _OfVectors(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], VectorType) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    register: Any = infer_global
    register(operation)(_OfVectors)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return build(builder)(*args)

    lower_builtin(operation, VectorType, VectorType)(lower)


_arithmetic(operator.add, lambda builder: builder.fadd)
_arithmetic(operator.sub, lambda builder: builder.fsub)
_arithmetic(operator.mul, lambda builder: builder.fmul)
_arithmetic(operator.truediv, lambda builder: builder.fdiv)
