"""The help pages: of one command, from its docstring and its parameters, and of all commands, in groups."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

PROGRAM = "samebits"
WIDEST, NARROWEST = 100, 50
"""Columns of a page, whatever the terminal's width."""
COLUMN = 30
"""Columns of the names; a longer name has its text on the next line."""

Row = tuple[str, str]


def command_page(name: str, docstring: str, parameters: Iterable[Any]) -> str:
    """Returns the page of one command, from its docstring.

    Its first paragraphs stand above the options. Its exit status, and its blocks with indented lines (as the
    examples are), which are printed as they are, stand below them.
    """
    arguments, options = _split_parameters(parameters)
    above, below = _split_docstring(docstring)
    words = [_in_usage(argument) for argument in arguments]
    usage = " ".join(["Usage:", PROGRAM, name, "[OPTIONS]", *words])
    lists = (
        _list("Arguments", [(argument.metavar, argument.help) for argument in arguments if argument.help]),
        _list("Options", [_option_row(option) for option in options]),
    )
    return "\n\n".join(filter(None, (usage, *map(_block, above), *lists, *map(_block, below))))


def group_page(
    docstring: str, commands: Iterable[tuple[str, str, str | None]], parameters: Iterable[Any]
) -> str:
    """Returns the page of all commands, given by name, docstring and group (None: it is not listed)."""
    groups: dict[str, list[Row]] = {}
    for name, text, group in commands:
        if group:
            groups.setdefault(group, []).append((name, first_sentence(text)))
    column = max(len(name) for rows in groups.values() for name, _ in rows)
    above, below = _split_docstring(docstring)
    lists = [_list(group, rows, column) for group, rows in groups.items()]
    options = _list("Options", [_option_row(option) for option in _split_parameters(parameters)[1]])
    usage = f"Usage: {PROGRAM} COMMAND [OPTIONS] ..."
    return "\n\n".join((usage, *map(_block, above), *lists, options, *map(_block, below)))


def first_sentence(docstring: str) -> str:
    return " ".join(docstring.partition("\n\n")[0].split())


def first_example(docstring: str) -> str:
    """Returns the command line of the first example; empty without one."""
    examples = docstring.partition("\nExamples:\n")[2].splitlines()
    return examples[0].strip().partition("  ")[0] if examples else ""


def _split_parameters(parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    shown = [parameter for parameter in parameters if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    return arguments, [parameter for parameter in shown if parameter.param_type_name == "option"]


def _split_docstring(docstring: str) -> tuple[list[str], list[str]]:
    blocks = docstring.strip().split("\n\n")
    at = next(
        (at for at, block in enumerate(blocks) if _is_verbatim(block) or block.startswith("Exit status")),
        len(blocks),
    )
    return blocks[:at], blocks[at:]


def _is_verbatim(block: str) -> bool:
    return any(line.startswith(" ") for line in block.splitlines())


def _block(text: str) -> str:
    return text if _is_verbatim(text) else _wrap(text)


def _in_usage(argument: Any) -> str:
    word = argument.metavar if argument.required else f"[{argument.metavar}]"
    return word if argument.nargs == 1 else f"{word}..."


def _option_row(option: Any) -> Row:
    names = ", ".join(sorted(map(str, option.opts), key=len))
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    shown = option.show_default and not option.is_flag and option.default not in (None, (), [])
    return names + value, (option.help or "") + (f" [default: {option.default}]" if shown else "")


def _list(title: str, rows: Sequence[Row], column: int | None = None) -> str:
    if not rows:
        return ""
    width = min(max(len(name) for name, _ in rows), COLUMN) if column is None else column
    return "\n".join([f"{title}:", *(_row(name, text, width) for name, text in rows)])


def _row(name: str, text: str, width: int) -> str:
    indent = " " * (width + 4)
    wrapped = _wrap(text, indent)
    if len(name) > width:
        return f"  {name}\n{wrapped}"
    return f"  {name.ljust(width)}  {wrapped.removeprefix(indent)}"


def _wrap(text: str, indent: str = "") -> str:
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))
    return textwrap.fill(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
