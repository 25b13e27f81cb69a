"""The message for a name that a package lacks: where the name is, or the one that was meant.

The public names are read from the text of each `__init__.py`: a failing `hasattr` imports nothing heavy.
"""

from __future__ import annotations

import ast
import difflib
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_INNER = ("determinism.table", "nn.utils", "rounding.optim")
"""Public packages within public packages."""
_BY_ANOTHER_NAME = {
    "Dataset": "samebits.data.Pipeline, or a torch.utils.data.Dataset in samebits.data.DataLoader",
    **dict.fromkeys(("manual_seed", "seed_everything", "set_seed"), "samebits.set_random_seed"),
    **dict.fromkeys(
        ("enable_full_determinism", "use_deterministic_algorithms"), "samebits.enable_op_determinism"
    ),
}
"""Names that other libraries have for it (TensorFlow, torch, Lightning, transformers)."""


def hint(package: str, name: str) -> str:
    """Returns " Use samebits.data.DataLoader." or " Did you mean ...?" for a missing name; "" if unknown.

    Example:
        >>> hint("samebits", "DataLoader")
        ' Use samebits.data.DataLoader.'
        >>> hint("samebits", "dataloader")
        ' Did you mean samebits.data.DataLoader?'
    """
    places = _places()
    if name.startswith("_") or package not in {"samebits", *(place for _, place in _pairs(places))}:
        return ""
    if name in places:
        return f" Use {_joined(places[name], name)}."
    if name in _BY_ANOTHER_NAME:
        return f" Use {_BY_ANOTHER_NAME[name]}."
    near = _nearest(name, [one for one, place in _pairs(places) if place == package]) or _nearest(
        name, places
    )
    return f" Did you mean {_joined(places[near], near)}?" if near else ""


def _joined(places: Sequence[str], name: str) -> str:
    return " or ".join(f"{place}.{name}" for place in places)


def _nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str | None:
    """Returns the name that is nearly `name`: letters in other case, no underscores, a slip."""
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.8)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _pairs(places: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    yield from ((name, place) for name, among in places.items() for place in among)


@functools.cache
def _places() -> Mapping[str, Sequence[str]]:
    """Returns every public name with its packages; the outer package alone if it has the name too."""
    root = sys.modules["samebits"]
    places = defaultdict(list, {name: ["samebits"] for name in root.__all__})
    for package in sorted([*root.__all__, *_INNER]):
        for name in _names(Path(root.__path__[0], *package.split("."))):
            if "samebits" not in places[name]:
                places[name].append(f"samebits.{package}")
    return places


def _names(path: Path) -> Iterator[str]:
    """Yields the public names of a package (`from x import y as y` in `__init__.py`), or module's classes."""
    for file in (path / "__init__.py", path.with_suffix(".py")):
        for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
            if isinstance(node, ast.ImportFrom):
                yield from (
                    alias.name for alias in node.names if alias.asname == alias.name and alias.name[0] != "_"
                )
            elif isinstance(node, ast.ClassDef):
                yield node.name
