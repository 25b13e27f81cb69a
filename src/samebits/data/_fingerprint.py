"""The fingerprint of a pipeline or a loader: a position holds only for one with the same stages and seed."""

from __future__ import annotations

import xxhash

from samebits.data._stages.stage import Stage
from samebits.errors import PipelineMismatchError

_DIGITS = 4


def fingerprint(stage: Stage, seed: int) -> str:
    """Returns 16 hexadecimal digits for the whole, and 4 for the seed and for each part of each stage from the sources on."""
    parts = _parts(stage, seed)
    return "".join([xxhash.xxh3_64_hexdigest("\n".join(parts).encode()), *map(_short, parts)])


def check(saved: str, stage: Stage, seed: int) -> None:
    """Raises `PipelineMismatchError`, naming what differs, unless `saved` is the fingerprint of this pipeline."""
    if saved == fingerprint(stage, seed):
        return
    theirs = [saved[at : at + _DIGITS] for at in range(16, len(saved), _DIGITS)]
    mine = _parts(stage, seed)
    for number, part in enumerate(mine):
        if number >= len(theirs):
            raise PipelineMismatchError(_message(f"{part} has been added since", len(theirs), len(mine)))
        if theirs[number] != _short(part):
            raise PipelineMismatchError(_message(f"{part} was different", len(theirs), len(mine)))
    raise PipelineMismatchError(_message(f"it had more stages after {mine[-1]}", len(theirs), len(mine)))


def _message(difference: str, theirs: int, mine: int) -> str:
    counts = "" if theirs == mine else f" (it had {theirs - 1} parts, this one has {mine - 1})"
    return f"the position belongs to another pipeline: {difference}{counts}. Build it as it was, or start anew without the state"


def _parts(stage: Stage, seed: int) -> list[str]:
    return [f"seed {seed}", *(part for one in _stages(stage) for part in one.parts())]


def _stages(stage: Stage) -> list[Stage]:
    return [*(one for below in stage.inputs for one in _stages(below)), stage]


def _short(part: str) -> str:
    return xxhash.xxh3_64_hexdigest(part.encode())[:_DIGITS]
