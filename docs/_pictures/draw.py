"""Draws what `cases.py` and `timeline.py` measured, for the light and the dark mode of the site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MODES = {
    "light": {"ink": "#222222", "torch": "#b3261e", "samebits": "#0b5cad"},
    "dark": {"ink": "#dddddd", "torch": "#ff8a80", "samebits": "#82b8ff"},
}
"""Colours with a contrast of at least 4.5:1 on the theme's background of each mode."""
DASHES = ("-", "--", ":")
LEAST = 1e-9
"""Below it the axis is linear, so that zero has a place."""


@contextmanager
def _axes(file: Path, mode: str, height: float) -> Iterator[Axes]:
    """A picture on a transparent background; saved at the end."""
    ink = MODES[mode]["ink"]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: dict[str, Any] = dict.fromkeys(inked, ink)
    style |= {"svg.fonttype": "path", "svg.hashsalt": "samebits", "font.size": 10.5, "axes.spines.top": False}
    with mpl.rc_context(style | {"axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(5.6, height), layout="constrained")
        yield axes
        figure.savefig(file, transparent=True, metadata={"Date": None})
        plt.close(figure)


def differences(file: Path, mode: str, changes: dict[str, list[list[float]]]) -> None:
    """The largest difference of a weight after each step, with torch alone and with samebits."""
    colours = MODES[mode]
    with _axes(file, mode, 2.6) as axes:
        for (name, (alone, ours)), dash in zip(changes.items(), DASHES, strict=False):
            steps = range(1, len(alone) + 1)
            axes.plot(steps, alone, dash, color=colours["torch"], lw=2, label=f"torch: {name}")
            axes.plot(steps, ours, dash, color=colours["samebits"], lw=2, label=f"samebits: {name}")
        axes.set_yscale("symlog", linthresh=LEAST, linscale=0.5)
        axes.set_ylim(-LEAST / 2, 1)
        axes.set_yticks([0, 1e-8, 1e-6, 1e-4, 1e-2, 1], ["equal", "1e-8", "1e-6", "1e-4", "0.01", "1"])
        axes.minorticks_off()
        axes.set_xlabel("step")
        axes.set_ylabel("largest difference\nof a weight")
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), labelcolor="linecolor")


def timeline(file: Path, mode: str, run: dict[str, Any]) -> None:
    """Steps and commits of a run over time: the first process, its kill, and the one that resumed."""
    colours, first, second = MODES[mode], run["processes"][0], run["processes"][1]
    replayed = [one for one in second if one[1] <= first[-1][1]]
    with _axes(file, mode, 3.6) as axes:
        axes.plot(*_points(first), "o", color=colours["torch"], ms=5, label="first process")
        axes.plot(*_points(second), "o", color=colours["samebits"], ms=5, label="second process")
        axes.plot(
            *_points(replayed),
            "o",
            color=colours["ink"],
            ms=11,
            mfc="none",
            label="done again: equal weights",
        )
        axes.plot(*_points(run["commits"]), "_", color=colours["ink"], ms=22, mew=2.5, label="commit on disk")
        killed, number, _ = first[-1]
        axes.annotate(
            "SIGKILL", (killed, number), (10, 14), textcoords="offset points", color=colours["ink"],
            arrowprops={"arrowstyle": "->", "color": colours["ink"]},
        )  # fmt: skip
        axes.set_xlabel("seconds")
        axes.set_ylabel("steps done")
        axes.set_ylim(0, second[-1][1] + 2)
        axes.set_yticks(range(0, second[-1][1] + 1, 5))
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _points(rows: list[Any]) -> tuple[list[float], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows]
