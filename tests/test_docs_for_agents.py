"""SKILL.md, which agents read: what it names is there, and its commands do what it says. And llms.txt, on a small site."""

import json
import re
import subprocess
import sys

import pytest
import typer

import doc_pages
from samebits.cli._app import app

LINES = 70
SCRIPT = """
import torch
import samebits
samebits.set_random_seed(3)
samebits.enable_op_determinism()
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(40, 6)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
with samebits.Run(None, model=model, optimizer=optimizer) as run:
    for step, (a, b) in run.steps(loader, epochs=3):
        loss = (model(a) - b).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def skill(root):
    return root / "SKILL.md"


def keys_of(rules):
    """All keys that a schema describes, at any depth."""
    found = {*rules.get("properties", {})}
    inner = [*rules.get("properties", {}).values(), *rules.get("$defs", {}).values(), *rules.get("anyOf", ())]
    return found.union(*map(keys_of, [*inner, *([rules["items"]] if "items" in rules else [])]))


def wrong_names(text, root):
    """The keys, words of verdicts and options in SKILL.md that the schema and the command line do not have."""
    schema = json.loads((root / "docs/reference/schemas/verify.schema.json").read_text())
    verify = typer.main.get_command(app).commands["verify"]
    options = {name for one in verify.params for name in one.opts}
    words = schema["properties"]["verdict"]["pattern"]
    table = re.search(r"^\| key .*?\n\n", text, re.DOTALL | re.MULTILINE)[0]
    keys = re.findall(r"`([a-z_]+)`", table)
    assert len(keys) > 8
    found = [key for key in keys if key not in keys_of(schema)]
    found += [word for word in re.findall(r"^\| \d \| ([A-Z ]+) \|", text, re.MULTILINE) if word not in words]
    return found + [
        one for one in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if one not in {*options, "--record"}
    ]


def test_what_the_skill_names_is_there(skill, root):
    """One page; keys, verdicts and options are those of the schema and the command (negative control: one of each that is none)."""
    text = skill.read_text()
    assert len(text.splitlines()) <= LINES and text.isascii()
    assert wrong_names(text, root) == []
    spoiled = (
        text.replace("`final`", "`finale`")
        .replace("| REPRODUCED |", "| REPEATED |")
        .replace("--run ", "--ran ")
    )
    assert {*wrong_names(spoiled, root)} == {"finale", "REPEATED", "--ran"}


@pytest.mark.slow
def test_the_commands_of_the_skill_run(skill, tmp_path):
    """Each ends with 0 on a script that is sound; one that draws by the process id is 1 in both (negative control)."""
    lines = [command for block in doc_pages.blocks(skill) for command, _ in doc_pages.commands(block.text)]
    assert len(lines) == 4
    short = [line.replace("--steps 40", "--steps 4 --checks run-again") for line in lines]
    (tmp_path / "train.py").write_text(SCRIPT)
    for line in short:
        printed = doc_pages.run_shell(f"{line}\necho exit status $?", tmp_path)
        assert printed.endswith("exit status 0\n"), printed
    assert json.loads((tmp_path / "report.json").read_text())["verdict"].startswith("REPRODUCED")
    own = "samebits.set_random_seed(__import__('os').getpid())"
    (tmp_path / "train.py").write_text(SCRIPT.replace("samebits.set_random_seed(3)", own))
    for line in short[1:]:
        assert doc_pages.run_shell(f"{line}\necho exit status $?", tmp_path).endswith("exit status 1\n")


CONF = """
import sys
sys.path.insert(0, {extensions!r})
project, extensions = "toy", ["myst_parser", "for_agents"]
"""


def test_llms_txt_has_titles_and_first_sentences(root, tmp_path):
    """Sections are the captions of the contents, entries the pages with their first sentence; a page is there as Markdown."""
    source, site = tmp_path / "docs", tmp_path / "site"
    (source / "reference/schemas").mkdir(parents=True)
    schema = {"title": "toy --json", "description": "All keys. And more."}
    (source / "reference/schemas/toy.schema.json").write_text(json.dumps(schema))
    (source / "conf.py").write_text(CONF.format(extensions=str(root / "docs/_ext")))
    (source / "index.md").write_text(
        "# Toy\n\nA toy. It\nplays.\n\n```{toctree}\n:caption: Guides\n\na\nb\n```\n"
    )
    (source / "a.md").write_text("# One\n\nVersion 1.5 is *old*. [Keys](reference/schemas/toy.schema.json)\n")
    (source / "b.md").write_text("# Two\n\n```{include} a.md\n```\n\n```{toctree}\nreference/c\n```\n")
    (source / "reference/c.md").write_text("# Three\n\nNo full stop, and\ntwo lines\n")
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "-q", "-b", "html", source, site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (site / "llms.txt").read_text()
    assert text.startswith(
        "# toy\n\n> A toy. It plays.\n\n## For agents\n\n- [SKILL.md](SKILL.md): Check that"
    )
    assert "\n- [toy --json](reference/schemas/toy.schema.json): All keys.\n" in text
    assert text.endswith(
        "## Guides\n\n- [One](a.md): Version 1.5 is old.\n- [Two](b.html): Version 1.5 is old.\n"
        "- [Three](reference/c.md): No full stop, and two lines\n"
    )
    assert (site / "a.md").read_text() == (source / "a.md").read_text() and not (site / "b.md").exists()
    assert (site / "reference/schemas/toy.schema.json").is_file()
    assert 'href="reference/schemas/toy.schema.json"' in (site / "a.html").read_text()
