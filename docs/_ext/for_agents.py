"""The files of the site for programs: `llms.txt` (llmstxt.org), pages as Markdown, SKILL.md, JSON schemas.

sphinx-llms-txt (0.7) puts all pages into one section, without descriptions, and copies no page as `PAGE.md`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

SKILL = Path(__file__).resolve().parents[2] / "SKILL.md"
SCHEMAS = "reference/schemas"
FIRST_SENTENCE = re.compile(r".+?[.!?](?=\s|$)|.+")
NO_MARKDOWN = re.compile(r"^```{(eval-rst|include|op-table)}", re.MULTILINE)
"""Such a page is made of others when the site is built: as Markdown it would be empty."""


def sections(app: Sphinx) -> Iterator[tuple[str, list[str]]]:
    """Yields the caption of each list of contents on the first page, and its pages, in order."""
    for tree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        pages = [below for page in tree["includefiles"] for below in _with_pages_below(app, page)]
        yield tree["caption"], pages


def _with_pages_below(app: Sphinx, page: str) -> Iterator[str]:
    yield page
    for below in app.env.toctree_includes.get(page, ()):
        yield from _with_pages_below(app, below)


def description(app: Sphinx, page: str) -> str:
    """Returns the first sentence of a page."""
    return first_sentence(next(app.env.get_doctree(page).findall(nodes.paragraph)).astext())


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text, in one line."""
    return FIRST_SENTENCE.match(" ".join(text.split()))[0]  # type: ignore[index]


def has_markdown(app: Sphinx, page: str) -> bool:
    """Returns True if the source of a page can be read as it is."""
    return not NO_MARKDOWN.search(Path(app.env.doc2path(page)).read_text())


def entries(app: Sphinx, pages: list[str]) -> Iterator[str]:
    """Yields a line for each page: title, address, first sentence."""
    for page in pages:
        file = f"{page}.md" if has_markdown(app, page) else app.builder.get_target_uri(page)
        yield f"- [{app.env.titles[page].astext()}]({file}): {description(app, page)}"


def for_programs(app: Sphinx) -> Iterator[str]:
    """Yields a line for SKILL.md, and one for each schema."""
    yield f"- [SKILL.md](SKILL.md): {re.search('^description: (.*)$', SKILL.read_text(), re.MULTILINE)[1]}"  # type: ignore[index]
    for file in sorted(Path(app.srcdir, SCHEMAS).iterdir()):
        schema = json.loads(file.read_text())
        yield f"- [{schema['title']}]({SCHEMAS}/{file.name}): {first_sentence(schema['description'])}"


def write(app: Sphinx, error: Exception | None) -> None:
    """Writes the files beside the pages."""
    if error is not None or app.builder.format != "html":
        return
    summary = next(app.env.get_doctree(app.config.root_doc).findall(nodes.paragraph)).astext()
    lines = [f"# {app.config.project}", "", f"> {' '.join(summary.split())}", ""]
    lines += ["## For agents", "", *for_programs(app)]
    for caption, pages in sections(app):
        lines += ["", f"## {caption}", "", *entries(app, pages)]
    out = Path(app.outdir)
    (out / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    for page in app.env.found_docs:
        if has_markdown(app, page):
            shutil.copyfile(app.env.doc2path(page), out / f"{page}.md")
    shutil.copytree(Path(app.srcdir, SCHEMAS), out / SCHEMAS, dirs_exist_ok=True)
    (out / SKILL.name).write_text(SKILL.read_text().replace("](docs/", "]("))


def to_schemas(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Leads links to schemas to the copies with a name that lasts; Sphinx has others below _downloads."""
    for link in doctree.findall(addnodes.download_reference):
        if link["reftarget"].endswith(".schema.json"):
            link["refuri"] = link["reftarget"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", to_schemas)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
