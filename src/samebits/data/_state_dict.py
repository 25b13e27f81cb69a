"""The state dict of a pipeline or a loader: the position that it saves, and the checks of one it loads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from samebits.data._fingerprint import check_fingerprint, fingerprint
from samebits.data._options import Options
from samebits.data._stages.stage import Stage, State
from samebits.errors import PipelineMismatchError, UnimplementedError

SCHEMA = 1
"""Of saved states."""


@dataclass
class ReadPosition:
    """The number of elements that an iteration has delivered in its epoch, and where the next one is."""

    stage: Stage
    seed: int
    options: Options
    epoch: int
    length: int | None
    """Elements of an epoch where each has a number, so that `state` is the next one's; else None."""
    delivered: int = 0
    state: State = None
    rolling_digest: int = 0
    exhausted: bool = False
    is_read: bool = False
    """True once an element was delivered from here."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last element delivered; see `PipelineIterator.state_dict`."""
        under_way = self.delivered and not self.exhausted
        if under_way and self.options.num_parallel_calls and not self.options.is_ordered():
            raise UnimplementedError(
                "PipelineIterator.state_dict: with deterministic=False elements come in order of completion, "
                "so that no position says which ones are still to come. Leave deterministic=False out where "
                "the state is saved, or save it between two epochs"
            )
        return {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "state": self.state,
            "digest": f"{self.rolling_digest:016x}",
            "pipeline": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a saved position. Raises PipelineMismatchError for one of another pipeline or samebits."""
        try:
            schema, epoch, delivered = int(state["schema"]), int(state["epoch"]), int(state["delivered"])
            inner, rolling, saved = (
                _check_state(state["state"]),
                int(state["digest"], 16),
                str(state["pipeline"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineMismatchError(
                f"load_state_dict: not a state of a samebits.data.Pipeline or DataLoader ({error!r}): "
                f"{state!r:.200}"
            ) from None
        if schema > SCHEMA:
            raise PipelineMismatchError(
                f"load_state_dict: the state has schema {schema}, this samebits knows up to {SCHEMA}; use "
                "the samebits that wrote it, or a newer one"
            )
        check_fingerprint(saved, self.stage, self.seed)
        if self.length is not None and (isinstance(inner, list) or (inner or 0) > self.length):
            raise PipelineMismatchError(
                f"load_state_dict: not a state of this pipeline, which has no element {inner}"
            )
        self.epoch, self.delivered, self.state, self.rolling_digest = epoch, delivered, inner, rolling
        self.exhausted = self.is_read = False

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.stage, self.seed)


def _check_state(state: Any) -> State:
    """Returns `state` if it is None, a count, or a list of such; raises `ValueError` otherwise."""
    if isinstance(state, list):
        return [_check_state(one) for one in state]
    if state is None or (isinstance(state, int) and state >= 0):
        return state
    raise ValueError(f"{state!r} is no position")
