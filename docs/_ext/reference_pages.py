"""Pages that are written when the site is built: the public names, the command line, and what has changed."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
import typer.cli
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from samebits.cli._app import app as command_line

ROOT = Path(__file__).resolve().parents[2]
RELEASES = "<!-- towncrier release notes start -->"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SPECIAL = re.compile(r"[*|]|(?<=\w)_(?!\w)")
FOR_DEVELOPERS = re.compile(r"Read `\S+` first\. Doors: ")
LITERAL = re.compile(r"(?<!`)`([^`\n]+(?:\n *[^`\n]+)?)`(?!`)")


def api() -> Any:
    """`tools/api.py`, which knows what is public."""
    spec = importlib.util.spec_from_file_location("api", ROOT / "tools" / "api.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


API = api()
PUBLIC = {name: f"{package.__name__}.{name}" for package in API.packages() for name in API.names(package)}
"""The whole name of each public name."""
MADE_AS = {
    f"{value.__module__}.{value.__qualname__}": f"{package.__name__}.{name}"
    for package in API.packages()
    for name, value in API.names(package).items()
    if inspect.isclass(value)
}
"""The public name of each class, by the module that makes it."""


def page_of(package: Any) -> str:
    """The page of a package: each public name, with its attributes and methods."""
    text = "\n".join(
        line for line in (inspect.getdoc(package) or "").splitlines() if not FOR_DEVELOPERS.match(line)
    )
    lines = [f"# {package.__name__}", "", text, "", "```{eval-rst}"]
    for name, value in API.names(package).items():
        kind = "autofunction"
        if inspect.isclass(value):
            kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        elif not callable(value):
            kind = "autodata"
        lines += [f".. {kind}:: {package.__name__}.{name}"]
        if kind == "autoclass" and (members := API.members(value)):
            lines += [f"   :members: {', '.join(members)}"]
        lines += [""]
    return "\n".join([*lines, "```", ""])


def page_of_commands() -> str:
    """The page of the command line, as `typer` writes it."""
    command = typer.main.get_command(command_line)
    return typer.cli.get_docs_for_click(obj=command, ctx=typer.Context(command), name="samebits")


def page_of_changes(root: Path = ROOT) -> str:
    """CHANGELOG.md, with the fragments of `changes/` as its first section, and links as from reference/."""
    draft = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"]
    done = subprocess.run(draft, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExtensionError(f"towncrier: {done.stderr}")
    section = "## Unreleased\n" + done.stdout.partition("\n")[2].rstrip()  # without the date
    text = (root / "CHANGELOG.md").read_text().replace(RELEASES, section, 1)
    return text.replace("](docs/", "](../")


def write_pages(app: Sphinx) -> None:
    """Writes the pages that have changed."""
    folder = Path(app.srcdir) / "reference"
    pages = {folder / "api" / f"{one.__name__}.md": page_of(one) for one in API.packages()}
    pages[folder / "command-line.md"] = page_of_commands()
    pages[folder / "changelog.md"] = page_of_changes()
    for file, text in pages.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring's Markdown: fences, and names between backticks."""
    blocks = FENCE.sub(_code_block, "\n".join(lines)).split("\n\n")
    code = [before.lstrip().startswith(".. code-block") for before in ["", *blocks]]
    text = [
        one if is_code or one.lstrip().startswith(">>>") else _prose(one)
        for one, is_code in zip(blocks, code, strict=False)
    ]
    lines[:] = "\n\n".join(text).splitlines()
    if what in {"attribute", "property"}:
        app.env.temp_data[name] = list(lines)
        lines.clear()


def as_it_stands(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Puts the text of an attribute back: napoleon takes what stands before a colon for its type."""
    lines[:] = app.env.temp_data.pop(name, lines)


def _prose(text: str) -> str:
    """Escapes what has a meaning in reStructuredText alone, outside of literals."""
    lines = text.split("\n")
    examples = next((n for n, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
    parts = LITERAL.split("\n".join(lines[:examples]))
    for n, part in enumerate(parts):
        parts[n] = _literal(part) if n % 2 else SPECIAL.sub(r"\\\g<0>", part)
    return "\n".join(["".join(parts), *lines[examples:]])


def _code_block(match: re.Match[str]) -> str:
    indent, language, body = match.groups()
    inner = "".join(f"   {line}" if line.strip() else line for line in body.splitlines(keepends=True))
    return f"{indent}.. code-block:: {language or 'text'}\n\n{inner}"


def _literal(text: str) -> str:
    """A link where it is a public name of samebits; else as it stands."""
    text = " ".join(text.split())
    name = text.removeprefix("samebits.").partition("(")[0]
    whole = PUBLIC.get(name.partition(".")[0])
    if whole is None or not re.fullmatch(r"\w+(\.\w+)*", name):
        return f"``{text}``"
    rest = name.partition(".")[2]
    return f":py:obj:`{text} <{whole}{'.' + rest if rest else ''}>`"


def to_public(app: Sphinx, environment: Any, node: Any, content: Any) -> Any:
    """Leads from the module that makes a class to its public name."""
    target = MADE_AS.get(node.get("reftarget", ""))
    if target is None or node.get("refdomain") != "py":
        return None
    domain = environment.get_domain("py")
    return domain.resolve_xref(environment, node["refdoc"], app.builder, "class", target, node, content)


def with_levels(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Gives the headings of the contents the level that Sphinx leaves out, and a screen reader needs."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("missing-reference", to_public)
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", as_it_stands, priority=600)
    app.connect("html-page-context", with_levels, priority=900)  # after the theme
    return {"parallel_read_safe": True}
