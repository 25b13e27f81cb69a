"""The reading of a user's function: its draws from the process's generators, and its lasting side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits._inspect.library_code import is_installed
from samebits._objects.budget import Budget, BudgetSpentError
from samebits._program.effects.abstract_values import GIVEN, Made, Value
from samebits._program.effects.captured import changed as changed
from samebits._program.effects.captured import note_reachable
from samebits._program.effects.captured import snapshot as snapshot
from samebits._program.effects.lookups import Finding as Finding
from samebits._program.effects.reading import Reading


def read(function: Callable[..., Any], budget: Budget | None = None) -> Reading:
    """Reads the code of `function`, and of what it reaches, as a call with one unknown argument.

    Parameters named `rng` and `key` are what `Pipeline` passes. `budget`: None: one of its own.
    """
    reading = Reading(budget or Budget())
    rng: Value = frozenset({Made((0, 4), np.random.Generator)})
    key: Value = frozenset({Made((0, 5), torch.Tensor)})
    try:
        with reading.budget:
            reading.read(function, [GIVEN], {"rng": rng, "key": key})
    except BudgetSpentError as spent:
        reading.give_up(str(spent))
    except Exception as error:  # a bytecode or an object that it does not know must not stop a pipeline
        reading.give_up(f"it cannot be read ({type(error).__name__}: {error})")
    if not reading.complete and is_installed(reading.home):
        reading.findings.clear()  # of a large library, whose memos and locks matter to nobody
    elif not reading.complete:
        note_reachable(reading, function)
    return reading
