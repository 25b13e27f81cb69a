"""The report of a self-check: the results of each part so far, in a folder of a few flat files, written after each case."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.errors import InvalidArgumentError
from samebits.selfcheck.worker import read

SCHEMA = "samebits.selfcheck/1"
PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2


@dataclass
class PartOutcome:
    """One part: its cases as the worker wrote them, and True if all of them have run."""

    name: str
    cases: list[dict[str, Any]] = field(default_factory=list)
    whole: bool = False
    seconds: float = 0.0

    def count(self, state: str) -> int:
        """Returns the number of cases that are `passed`, `failed` or `skipped`."""
        return sum(case["state"] == state for case in self.cases)

    @property
    def verdict(self) -> str:
        """Returns one word or two: a part in which nothing ran has shown nothing, and has failed."""
        if not self.whole:
            return "not finished" if self.cases else "not run"
        if self.count("failed"):
            return "failed"
        return "passed" if self.count("passed") else "no case ran"


@dataclass
class SelfcheckReport:
    """The contents of the folder."""

    folder: Path
    machine: dict[str, Any]
    outcomes: dict[str, PartOutcome] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: Path, machine: dict[str, Any]) -> SelfcheckReport:
        """Returns the report of the folder, to continue; a new one where there is none.

        Raises:
            InvalidArgumentError: the folder's is of another GPU, torch or samebits, or cannot be read.
        """
        file, made = folder / "report.json", cls(folder, machine)
        if not file.exists():
            return made
        content = _content(file)
        if not _same_machine(content["machine"], machine):
            raise InvalidArgumentError(
                f"--report {folder}: it holds a report of {_title(content['machine'])}, and this is {_title(machine)}: "
                "name another folder."
            )
        made._take(content)
        return made

    @classmethod
    def stored(cls, folder: Path) -> SelfcheckReport:
        """Returns the report of the folder, of whatever machine.

        Raises:
            InvalidArgumentError: there is none, or it cannot be read.
        """
        file = folder / "report.json"
        if not file.exists():
            raise InvalidArgumentError(f"--report {folder}: there is no report.json in it.")
        content = _content(file)
        made = cls(folder, content["machine"])
        made._take(content)
        return made

    def _take(self, content: dict[str, Any]) -> None:
        for name, one in content["parts"].items():
            self.outcomes[name] = PartOutcome(name, one["cases"], one["whole"], one["seconds"])

    def outcome(self, name: str) -> PartOutcome:
        """Returns the outcome of that part, empty at first."""
        return self.outcomes.setdefault(name, PartOutcome(name))

    @property
    def exit(self) -> int:
        """Returns 0: all selected parts have passed; 1: a case failed, or a part ran none, or is not finished."""
        return PASSED if all(one.verdict == "passed" for one in self.outcomes.values()) else FAILED

    def write(self) -> None:
        """Writes the whole file anew, in one step."""
        content = {
            "schema": SCHEMA,
            "machine": self.machine,
            "exit": self.exit,
            "parts": {
                one.name: {
                    "whole": one.whole,
                    "seconds": round(one.seconds, 1),
                    "verdict": one.verdict,
                    "cases": one.cases,
                }
                for one in self.outcomes.values()
            },
        }
        replace(self.folder / "report.json", json.dumps(content, indent=1) + "\n")


def replace(file: Path, text: str) -> None:
    """Writes a file that is complete or absent."""
    temporary = file.with_name(f".{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)


def finished_cases(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the cases of a worker's file that have an outcome."""
    return [line for line in lines if line["state"] != "begun"]


def running_case(file: Path) -> str | None:
    """Returns the case that a worker had begun and not ended when it died."""
    lines = read(file)
    return lines[-1]["case"] if lines and lines[-1]["state"] == "begun" else None


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        assert content["schema"] == SCHEMA
        return content
    except (ValueError, KeyError, TypeError, AssertionError):
        raise InvalidArgumentError(
            f"--report: {file} is no report of this samebits; name another folder."
        ) from None


_TELLING = ("gpu", "torch", "cuda", "samebits")


def _same_machine(then: dict[str, Any], now: dict[str, Any]) -> bool:
    return all(then.get(name) == now.get(name) for name in _TELLING)


def _title(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {machine.get(name)}" for name in _TELLING)
