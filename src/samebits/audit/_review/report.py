"""The results of the review, its exit status, and the same as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from samebits.audit._review.evidence import disagreements, evidence
from samebits.audit._review.row import ReviewRow

SCHEMA = "samebits.review/1"
AS_PROMISED, DIFFERENT, COULD_NOT_RUN = 0, 1, 2


@dataclass(frozen=True)
class Review:
    """The result of `review`."""

    rows: tuple[ReviewRow, ...]
    not_run: tuple[str, ...]
    """Names of cases that were left out because the budget was spent."""
    settings: dict[str, Any]
    seconds: float
    environment: dict[str, Any]

    @cached_property
    def disagreements(self) -> list[str]:
        """Where this machine does what the op table says it does not. The table speaks of the switch being on."""
        rows = self.rows if self.settings["switch"] else ()
        if not self.settings["thread_invariant"]:
            rows = tuple(row for row in rows if row.threads is not False)
        return disagreements(rows)

    @property
    def exit(self) -> int:
        """0: as promised; 1: a run-to-run difference, a refusal or a disagreement; 2: none, but a case was not run."""
        if self.disagreements or any(row.runs is False or row.refused for row in self.rows):
            return DIFFERENT
        return COULD_NOT_RUN if self.not_run or any(row.failed for row in self.rows) else AS_PROMISED

    def verdict(self) -> str:
        """One sentence."""
        if self.exit == COULD_NOT_RUN:
            return "NOT KNOWN: some cases could not be run."
        if self.exit == DIFFERENT:
            return "NOT AS PROMISED on this machine: see the lines above."
        return "AS PROMISED on this machine."

    def to_json(self) -> str:
        """Everything, with the evidence that the op table takes from it."""
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
            "exit": self.exit,
            "verdict": self.verdict(),
            "disagreements": self.disagreements,
            "not_run": self.not_run,
            **evidence(self.rows),
            "rows": [row.to_dict() for row in self.rows],
        }
        return json.dumps(content, indent=1) + "\n"

    def write_json(self, file: Path) -> None:
        """Writes `to_json` to `file`."""
        file.write_text(self.to_json(), encoding="utf-8")
