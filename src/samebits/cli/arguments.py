"""Where our options end and the script's begin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand


class OptionsThenScript(TyperCommand):
    """Options of ours stand before SCRIPT; everything behind it goes to the script untouched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}


class ScriptThenAnything(OptionsThenScript):
    """Options of ours may also stand directly behind SCRIPT; they end at the first word that is not ours, or at `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Moves our options from behind SCRIPT to before it."""
        before = self._ours(args)
        script, behind = args[before : before + 1], args[before + 1 :]
        ours = self._ours(behind)
        theirs = behind[ours:]
        if theirs[:1] == ["--"]:
            theirs = theirs[1:]
        return super().parse_args(ctx, [*args[:before], *behind[:ours], *script, *theirs])

    def _ours(self, words: list[str]) -> int:
        """How many of the first words are options of ours and their values."""
        takes_value = {
            name: not getattr(option, "is_flag", False) for option in self.params for name in option.opts
        }
        takes_value["--help"] = False
        return _leading(words, {name: value for name, value in takes_value.items() if name.startswith("-")})


def _leading(words: list[str], takes_value: dict[str, bool]) -> int:
    count, rest = 0, iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            break
        count += 1
        if takes_value[name] and not equals and _next(rest):
            count += 1
    return count


def _next(words: Iterable[str]) -> bool:
    return next(iter(words), None) is not None
