"""The directive `picture`: a figure of a measured run, drawn when the site is built (docs/_pictures).

The runs take a minute. They are repeated when a program of docs/_pictures, or torch, has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).resolve().parents[1] / "_pictures"
sys.path.insert(0, str(FOLDER))

import cases  # noqa: E402
import draw  # noqa: E402
import timeline  # noqa: E402

MADE = FOLDER / "made"


@cache
def results() -> dict[str, Any]:
    """Returns what was measured, with machine, date and a digest of the code that measured it."""
    code = [file.read_bytes() for file in sorted(FOLDER.glob("*.py")) if file.name != "draw.py"]
    digest = hashlib.sha256(b"".join([*code, torch.__version__.encode()])).hexdigest()
    file = MADE / "results.json"
    if file.exists() and (found := json.loads(file.read_text()))["digest"] == digest:
        return found
    found = {
        "digest": digest,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores of an {_cpu()}, torch {torch.__version__.partition('+')[0]}",
        "cases": cases.measure(),
        "timeline": timeline.measure(),
    }
    MADE.mkdir(exist_ok=True)
    file.write_text(json.dumps(found))
    return found


def draw_all(app: Sphinx) -> None:
    """Draws each picture for each mode."""
    found = results()
    for mode in draw.MODES:
        for name, changes in found["cases"].items():
            draw.differences(MADE / f"{name}-{mode}.svg", mode, changes)
        draw.timeline(MADE / f"timeline-{mode}.svg", mode, found["timeline"])


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


class MeasuredPicture(SphinxDirective):
    """A picture by its name: a cause of `cases.py`, or `timeline`; the content is the caption."""

    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        name, found = self.arguments[0], results()
        command = "timeline.py" if name == "timeline" else f"cases.py {name}"
        figure = nodes.figure()
        for mode in draw.MODES:
            uri = f"/_pictures/made/{name}-{mode}.svg"
            figure += nodes.image(uri=uri, alt=self.options["alt"], classes=[f"only-{mode}"])
        children, _ = self.parse_inline(" ".join(self.content))
        source = f" Measured {found['date']} on {found['machine']}: "
        run = nodes.literal("", f"python docs/_pictures/{command}")
        figure += nodes.caption("", "", *children, nodes.Text(source), run)
        self.env.note_dependency(str(MADE / "results.json"))
        return [figure]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("picture", MeasuredPicture)
    app.connect("builder-inited", draw_all)
    return {"parallel_read_safe": True}
