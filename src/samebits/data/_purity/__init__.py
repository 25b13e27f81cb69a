"""The reading of a user's function: its draws from the process's generators, and its lasting side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits.data._purity.abstract_values import GIVEN, Made, Value
from samebits.data._purity.captured_state import changed as changed
from samebits.data._purity.captured_state import snapshot as snapshot
from samebits.data._purity.lookups import Finding as Finding
from samebits.data._purity.reading import Reading


def read(function: Callable[..., Any]) -> Reading:
    """Reads the code of `function`, and of what it reaches, as a call with one unknown argument.

    Parameters named `rng` and `key` are what `Pipeline` passes.
    """
    reading = Reading()
    rng: Value = frozenset({Made((0, 4), np.random.Generator)})
    key: Value = frozenset({Made((0, 5), torch.Tensor)})
    try:
        reading.read(function, [GIVEN], {"rng": rng, "key": key})
    except Exception as error:  # a bytecode or an object that it does not know must not stop a pipeline
        reading.complete = False
        reading.may_draw = reading.may_draw or f"it cannot be read ({type(error).__name__}: {error})"
    return reading
