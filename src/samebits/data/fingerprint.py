"""What a pipeline is made of, as plain values: a position holds only for a pipeline of equal fingerprint."""

from __future__ import annotations

import json
from typing import Any

import xxhash

from samebits.data.stage import Stage


def fingerprint(stage: Stage, seed: int) -> dict[str, Any]:
    """The stages from the sources on, each with what decides its elements, and the seed."""
    return {"seed": seed, "stages": [one.describe() for one in _stages(stage)]}


def short(whole: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits of a fingerprint, for the state of an iterator."""
    return xxhash.xxh3_64_hexdigest(json.dumps(whole, sort_keys=True).encode())


def _stages(stage: Stage) -> list[Stage]:
    return [*(one for below in stage.inputs for one in _stages(below)), stage]
