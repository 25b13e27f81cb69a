"""The fingerprint of a pipeline: a position holds only for one with the same stages and seed."""

from __future__ import annotations

import xxhash

from samebits.data._stages.stage import Stage
from samebits.errors import PipelineMismatchError

_DIGITS = 4
"""Hexadecimal digits of each part in a fingerprint."""


def fingerprint(stage: Stage, seed: int) -> str:
    """Returns 16 hexadecimal digits for the whole, then 4 for the seed and for each part of the stages."""
    parts = _parts(stage, seed)
    return "".join([xxhash.xxh3_64_hexdigest("\n".join(parts).encode()), *map(_short, parts)])


def check_fingerprint(saved: str, stage: Stage, seed: int) -> None:
    """Raises `PipelineMismatchError` with the difference unless `saved` is this pipeline's fingerprint."""
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
    return (
        f"the position belongs to another pipeline: {difference}{counts}. Build it as it was, or start anew "
        "without the state"
    )


def _parts(stage: Stage, seed: int) -> list[str]:
    return [f"seed {seed}", *(part for one in stage.chain() for part in one.parts())]


def _short(part: str) -> str:
    return xxhash.xxh3_64_hexdigest(part.encode())[:_DIGITS]
