"""The pages of docs/ are true: links resolve, programs run as they stand, output is what is shown, words are plain."""

import re

import pytest

import doc_pages
from samebits.audit._verify import check_plan

MAINTAINERS = {"api.md", "benchmarks.md", "measurements.md", "random-quality.md"}
"""Reference and background: as long as it has to be."""

WIDE = {"api.md"}
"""Written from docstrings."""

ARITHMETIC = "src/samebits/arithmetic/README.md"
"""For whoever works on kernels."""

WORDS = 1900
BANNED = re.compile(
    r"\b(cures?|told|held|mended|lets? be|the ways? out|of which|so many|another one|(?:is|are) named)\b",
    re.IGNORECASE,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text):
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """The anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    """The links of a page whose file or heading does not exist."""
    found = []
    for link in LINK.findall(prose(page.read_text())):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if re.match(r"https?:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def long_lines(text):
    """Numbers of the lines over 110 characters, in tables over 200."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if len(line) > (200 if line.startswith("|") else 110)]


def banned_words(text):
    return [match[0] for match in BANNED.finditer(prose(text))]


def words(text):
    return len(re.findall(r"\S*\w\S*", prose(text)))


def absent_parts(page, package):
    """The files of a page's table that do not exist, and the functions and classes that are not defined there."""
    found = []
    for file, part in re.findall(r"`([\w/]+\.py)`(?:: `(?:\w+\.)?(\w+)`)?", page.read_text()):
        place = next((one for one in (package / file, page.parent / file) if one.exists()), None)
        text = "" if place is None else place.read_text()
        if place is None or (part and not re.search(rf"(def|class) {part}\b", text)):
            found.append(f"{file}: {part}" if part else file)
    return found


def unlisted(folder):
    """The pages of a folder that its index does not link to with a sentence."""
    rows = re.findall(r"^- \[[^]]*\]\(([^)]+)\): .+\.$", (folder / "index.md").read_text(), re.MULTILINE)
    return {page.name for page in folder.glob("*.md")} - {"index.md", *rows}


@pytest.fixture
def pages(root):
    return [*sorted((root / "docs").glob("*.md")), root / ARITHMETIC]


@pytest.fixture
def bad(tmp_path):
    """A folder of two pages that break every rule."""
    (tmp_path / "index.md").write_text("- [a.md](a.md)\n")
    text = f"# A, b\n[x](#a-b) [y](#c) [z](no.md)\nThe cure is told.\n{'a' * 111}\n" + "w " * (WORDS + 1)
    (tmp_path / "a.md").write_text(text)
    return tmp_path / "a.md"


def test_each_page_has_a_sentence_in_the_index(root):
    """docs/index.md links to every page of docs/, each with a sentence."""
    assert unlisted(root / "docs") == set()


def test_each_link_leads_somewhere(pages, root):
    """Each link in docs/ and in the pages of the root has a file, and each anchor a heading."""
    every = [*root.glob("*.md"), *pages]
    broken = {page.name: found for page in every if (found := broken_links(page))}
    assert broken == {}


def test_no_line_is_too_long_to_read(pages):
    """Lines have at most 110 characters, those of tables 200."""
    found = {page.name: long_lines(page.read_text()) for page in pages if page.name not in WIDE}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_user_pages_are_in_plain_words_and_short(pages):
    """Pages for users have at most 1,900 words outside of code, and none that only this project uses so."""
    for page in pages:
        if page.name not in MAINTAINERS:
            assert words(page.read_text()) <= WORDS, page.name
            assert banned_words(page.read_text()) == [], page.name


def test_the_rules_see_a_page_that_breaks_them(bad):
    """Negative control: a page that breaks each rule once is found by each."""
    text = bad.read_text()
    assert broken_links(bad) == ["#c", "no.md"]
    assert long_lines(text) == [4, 5]
    assert banned_words(text) == ["cure", "told"]
    assert words(text) > WORDS
    assert unlisted(bad.parent) == {"a.md"}


def test_the_page_of_arithmetic_names_what_is_there(root, bad):
    """Files and functions on the way of a product exist (negative control: one that is gone, and one that never was)."""
    package = root / "src" / "samebits"
    assert absent_parts(root / ARITHMETIC, package) == []
    bad.write_text("`_native/llvm.py`: `loaded`, `_native/llvm.py`: `gone`, `no.py`")
    assert absent_parts(bad, package) == ["_native/llvm.py: gone", "no.py"]


@pytest.mark.slow
def test_the_first_page_runs(root, tmp_path):
    """Each block of docs/start/prove.md, in order: files are written and edited, commands print what the page shows."""
    shown = 0
    for block in doc_pages.blocks(root / "docs" / "start.md"):
        file = tmp_path / block.file
        if block.language == "python":
            file.write_text(block.text)
        elif block.language == "diff":
            file.write_text(doc_pages.edited(file.read_text(), block.text))
        elif "kill -9" in block.text:
            killed_and_resumed(block.text, tmp_path)
        else:
            shown += doc_pages.run_and_compare(block.text, tmp_path)
    assert shown == 6


def killed_and_resumed(text, folder):
    """Runs the three commands that kill a training and start it again; it goes on behind its last commit."""
    start, kill, again = (command for command, _ in doc_pages.commands(text))
    ready = 'grep -q "epoch 9:" first.txt && ls runs/first/commits/*/manifest.json > committed.txt 2>&1'
    pause = f"for i in $(seq 1200); do {ready} && break; sleep 0.1; done"
    doc_pages.shell(
        f"{start.replace('&', '> first.txt 2>&1 &')}\n{re.sub(r'sleep [0-9]+', pause, kill)}", folder
    )
    assert "epoch 59:" not in (folder / "first.txt").read_text()
    resumed = doc_pages.shell(again, folder)
    assert "epoch 0:" not in resumed
    assert "epoch 59:" in resumed


def test_a_wrong_page_is_seen(tmp_path):
    """Negative control: a command that prints something else than the page shows fails, and so does a wrong edit."""
    assert doc_pages.run_and_compare("$ echo one; echo two\none\n...\n", tmp_path) == 1
    with pytest.raises(AssertionError):
        doc_pages.run_and_compare("$ echo one; echo two\none\n", tmp_path)
    with pytest.raises(AssertionError):
        doc_pages.edited("a\nb\n", "-c\n+d\n")


@pytest.mark.slow
def test_the_ddp_page_runs(root, tmp_path):
    """The script of docs/how-to/distributed.md: two gloo processes, killed and started again, end with the same weights."""
    block = next(doc_pages.blocks(root / "docs" / "distributed.md"))
    (tmp_path / "train.py").write_text(block.text)
    compare = next(
        block.text for block in doc_pages.blocks(root / "docs" / "distributed.md") if "pkill" in block.text
    )
    script = [command for command, _ in doc_pages.commands(compare)]
    pause = 'for i in $(seq 1200); do grep -q "epoch 0:" killed.txt && break; sleep 0.01; done'
    script[1] = re.sub(r"sleep \d+", pause, script[1].replace("&", "> killed.txt 2>&1 &", 1))
    assert doc_pages.shell("\n".join(script), tmp_path).splitlines()[-1] == "equal"
    weights = re.findall(r"^rank \d: weights (\w+)$", (tmp_path / "whole.txt").read_text(), re.MULTILINE)
    assert len(weights) == 2
    assert len(set(weights)) == 1
    assert "weights" not in (tmp_path / "killed.txt").read_text()


def test_the_page_on_evidence_requires_a_full_proof(root):
    """The checks in the command of docs/how-to/auditor.md that requires a proof are names of `verify`, and all kills are there."""
    page = (root / "docs" / "evidence.md").read_text()
    named = re.search(r"^\$ samebits verify --require (\S+) train.py$", page, re.MULTILINE)[1].split(",")
    assert {*check_plan.KILLS, "workers", "threads"} == {*named} <= {*check_plan.GROUPS, *check_plan.KILLS}
