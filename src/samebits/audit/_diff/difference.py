"""The first difference of two records, and the sentence about it."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 2


@dataclass(frozen=True)
class Difference:
    """The first difference of two records."""

    step: int
    component: str
    """The cause as far as the records show it: the first in causal order that differs."""
    paths: tuple[str, ...]
    """Leaves of the component that differ; empty if it has none."""
    detail: str = ""
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further components that differ in the same line, with their paths."""
    epoch: int = 0
    batch_index: int = 0
    place: str = "step"
    """"step", "start" (before the first step), "resumed" (before the first step of a resumed process) or "end"."""
    rank: int | None = None
    """The rank on which it is, in a job of several."""

    def sentence(self) -> str:
        """Returns one readable line: step, component, leaves, other components that differ."""
        detail = f" ({self.detail})" if self.detail else ""
        more = ", ".join(_name_leaves(component, paths) for component, paths in self.others)
        return f"{self._where()}{_name_leaves(self.component, self.paths)} {_verb(self)}{detail}" + (
            f", then {more}" if more else ""
        )

    def _where(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        if self.place == "end":
            return rank
        if self.place == "start":
            return f"{rank}before the first step: "
        if self.place == "resumed":
            return f"{rank}resumed at step {self.step + 1}: "
        return f"{rank}step {self.step} (epoch {self.epoch}, batch {self.batch_index}): "


def _verb(difference: Difference) -> str:
    if difference.component == "end":
        return "differs"
    plural = difference.component == "locals" and len(difference.paths) > 1
    return "differ" if plural or difference.component in {"steps", "generators", "buffers"} else "differs"


_TITLES = {
    "final": "the model at the script's end",
    "steps": "the numbers of steps",
    "end": "the record",
    "lr": "learning rate",
    "eval": "evaluation outputs",
    "memory": "what the program holds",
}


def _name_leaves(component: str, paths: tuple[str, ...]) -> str:
    """Returns a component and up to two of its leaves."""
    if component == "locals":
        plain = [path for path in paths if path.isidentifier()] == list(paths)
        title = ("local variable" if plain else "user state") + ("s" if len(paths) > 1 and plain else "")
        return f"{title} {_join_words([f'`{path}`' for path in paths])}"
    title = _TITLES.get(component, component)
    shown = [path for path in paths if path]
    return f"{title} ({_join_words(shown)})" if shown else title


def _join_words(items: list[str]) -> str:
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f", ... {more} more" if more > 0 else "")
