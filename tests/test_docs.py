"""The pages of docs/ are true: links resolve, each program runs, output is what is shown, words are plain, pages are short."""

import operator
import re
import subprocess
import sys
import tomllib

import pytest

import doc_figures
import doc_pages
from samebits import arithmetic
from samebits.audit._verify import check_plan

ARITHMETIC = "src/samebits/arithmetic/README.md"
"""For whoever works on kernels."""
INCLUDES = {"contributing.md"}
"""Pages that include one of the root, which has rules of its own."""
EVIDENCE = "evidence"
"""The folder of figures: its tables may be wide, and a list of machines uses the words of emulators."""
WORDS, COLUMNS, SENTENCE = 1200, 100, 25
BANNED = re.compile(
    r"\b(cures?|told|held|mended|lets? be|the ways? out|played|telling|of which|so many|another one|(?:is|are) named)\b",
    re.IGNORECASE,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text):
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """The anchors that are made of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    """The links of a page whose file or heading does not exist."""
    found = []
    for link in LINK.findall(prose(page.read_text())):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if re.match(r"https?:", link) or "api/" in link:  # these pages are made when the site is built
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def long_lines(text):
    """Numbers of the lines with more than 100 characters."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]


def banned_words(text):
    return [match[0] for match in BANNED.finditer(prose(text))]


def words(text):
    return len(re.findall(r"\S*\w\S*", prose(text)))


def middle_sentence(text):
    """The number of words of the sentence in the middle, by length."""
    plain = re.sub(r"[|#*`]", " ", prose(text))
    sentences = [one.split() for one in re.split(r"(?<=[.:!?])\s", plain)]
    lengths = sorted(len(one) for one in sentences if len(one) > 1)
    return lengths[len(lengths) // 2]


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
    """The pages of a site that no list of contents names, but for the start page."""
    text = "".join(page.read_text() for page in folder.rglob("*.md"))
    contents = "\n".join(re.findall(r"^```{toctree}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).split()
    names = {page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md")}
    return {one for one in names - {"index", *contents} if not one.startswith("reference/api/")}


def fragments(root):
    return sorted(file for file in (root / "changes").iterdir() if file.name != "README.md")


def wrong_in_fragment(file, root):
    """What is wrong in a file of changes/: its kind, length, words, links from the root, the version of moved bits."""
    types = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    kinds = "|".join(one["directory"] for one in types)
    text = file.read_text()
    found = banned_words(text) + [link for link in LINK.findall(text) if not resolves(link, root)]
    if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})(\.\d+)?\.md", file.name):
        found.append(f"the name is none of NUMBER.KIND.md, +WORDS.KIND.md with KIND in {kinds}")
    if not text.strip():
        found.append("empty")
    if any(len(line) > COLUMNS for line in text.splitlines()) or not text.isascii():
        found.append(f"a line of more than {COLUMNS} characters, or one that is not ASCII")
    if ".bits." in file.name and not moved_to(text):
        found.append("it does not say `BITS` is N")
    return found


def resolves(link, root):
    return link.startswith("https://") or (
        link.startswith("docs/") and (root / link.partition("#")[0]).exists()
    )


def moved_to(text):
    """The versions of `samebits.arithmetic.BITS` that a text names."""
    return [int(number) for number in re.findall(r"`BITS` is (\d+)", text)]


def all_pages(root):
    made = {"reference/command-line.md", "reference/changelog.md"}
    pages = [page for page in sorted((root / "docs").rglob("*.md")) if page.parent.name != "api"]
    return [page for page in pages if page.relative_to(root / "docs").as_posix() not in made]


@pytest.fixture
def pages(root):
    return [*all_pages(root), root / ARITHMETIC]


@pytest.fixture
def bad(tmp_path):
    """A folder of two pages that break every rule."""
    (tmp_path / "index.md").write_text("```{toctree}\nb\n```\n")
    text = f"# A, b\n[x](#a-b) [y](#c) [z](no.md)\nThe cure is told.\n{'a' * 101}\n" + "w " * (WORDS + 1)
    (tmp_path / "a.md").write_text(text)
    return tmp_path / "a.md"


def test_each_page_is_in_the_contents(root):
    """A list of contents names every page of docs/."""
    assert unlisted(root / "docs") <= {"reference/command-line", "reference/changelog"}


def test_each_link_leads_somewhere(pages, root):
    """Each link in docs/ and in the pages of the root has a file, and each anchor a heading."""
    every = [
        *root.glob("*.md"),
        root / "changes" / "README.md",
        *(page for page in pages if page.name not in INCLUDES),
    ]
    broken = {page.name: found for page in every if (found := broken_links(page))}
    assert broken == {}


def test_no_line_is_too_long_to_read(root):
    """Lines have at most 100 characters, but for tables of figures."""
    shown = [page for page in all_pages(root) if page.parent.name != EVIDENCE]
    found = {page.name: long_lines(page.read_text()) for page in shown}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_user_pages_are_in_plain_words_and_short(pages):
    """Pages have at most 1,200 words outside of code, sentences of 25 in the middle, and no word of this house's own."""
    for page in pages:
        text = page.read_text()
        assert words(text) <= WORDS, page.name
        if page.parent.name != EVIDENCE and page.name not in INCLUDES:
            assert banned_words(text) == [], page.name
            assert middle_sentence(text) <= SENTENCE, page.name


def test_the_rules_see_a_page_that_breaks_them(bad):
    """Negative control: a page that breaks each rule once is found by each."""
    text = bad.read_text()
    assert broken_links(bad) == ["#c", "no.md"]
    assert long_lines(text) == [4, 5]
    assert banned_words(text) == ["cure", "told"]
    assert words(text) > WORDS and middle_sentence(text) > SENTENCE
    assert unlisted(bad.parent) == {"a"}


def test_each_fragment_of_the_change_log_is_well_formed(root):
    """Each file of changes/ has a known kind, says something in plain words and short lines, and the bits' version."""
    found = {file.name: wrong for file in fragments(root) if (wrong := wrong_in_fragment(file, root))}
    assert found == {}
    moved = [
        version for file in fragments(root) if ".bits." in file.name for version in moved_to(file.read_text())
    ]
    assert not moved or max(moved) == arithmetic.BITS


@pytest.mark.parametrize(("name", "text", "wrong"), [
    ("+a.feature.md", "A.", "KIND"), ("a.added.md", "A.", "KIND"), ("+a.added.txt", "A.", "KIND"),
    ("1.fixed.md", " \n", "empty"), ("+a.changed.md", "a" * 101, "a line of more than 100"),
    ("+a.added.md", "The cure.", "cure"), ("+a.added.md", "[a](docs/no.md)", "docs/no.md"), ("+a.added.md", "[a](README.md)", "README.md"),
    ("2.bits.md", "Sums moved.", "`BITS` is N"), ("2.bits.md", "Sums moved: `BITS` is 4.", ""),
    ("+a-b.added.2.md", "See [a](docs/index.md#more).", ""),
])  # fmt: skip
def test_a_wrong_fragment_is_seen(root, tmp_path, name, text, wrong):
    """Negative control: an unknown kind, nothing, a long line, a word, a link to nothing, no version; a right one passes."""
    (tmp_path / name).write_text(text)
    found = wrong_in_fragment(tmp_path / name, root)
    assert len(found) == bool(wrong) and wrong in "".join(found)


def test_the_page_of_arithmetic_names_what_is_there(root, bad):
    """Files and functions on the way of a product exist (negative control: one that is gone, and one that never was)."""
    package = root / "src" / "samebits"
    assert absent_parts(root / ARITHMETIC, package) == []
    bad.write_text("`_native/llvm.py`: `loaded`, `_native/llvm.py`: `gone`, `no.py`")
    assert absent_parts(bad, package) == ["_native/llvm.py: gone", "no.py"]


def with_programs():
    """The pages that have a fence which runs, as test cases."""
    root = doc_pages.ROOT
    found = [page for page in all_pages(root) if any(block.runs for block in doc_pages.blocks(page))]
    return [pytest.param(page, id=page.relative_to(root / "docs").as_posix()) for page in found]


def shown_runs(pages):
    """The (file, table) of each region of figures."""
    return [
        (file, name) for page in pages for _, file, name, _ in doc_figures.REGION.findall(page.read_text())
    ]


def test_each_table_of_figures_is_that_of_its_run(root, pages, tmp_path):
    """Regions are as docs/evidence/figures/ has them; negative control: a figure typed into a page, a file that is none."""
    assert [page.name for page in pages if doc_figures.filled(page.read_text()) != page.read_text()] == []
    page = (root / "docs" / "evidence" / "benchmarks.md").read_text()
    changed = page.replace("| 396 ms | 1.09 |", "| 396 ms | 1.08 |")
    assert changed != page and doc_figures.filled(changed) == page
    with pytest.raises(
        ValueError, match=r"steps-none/\.\.\..*: docs/evidence/figures has commit-large-amd, "
    ):
        doc_figures.filled(page.replace("figures: steps-amd/", "figures: steps-none/"))
    with pytest.raises(ValueError, match="the tables of steps-amd are steps"):
        doc_figures.filled(page.replace("figures: steps-amd/steps", "figures: steps-amd/ops"))


def test_each_run_says_where_when_and_how_it_was_made(root, pages):
    """Each file has a machine, a date and a command, and each of its tables is shown once; none is typed beside them."""
    runs = {file.stem: doc_figures.run_of(file.stem) for file in doc_figures.FOLDER.iterdir()}
    for run in runs.values():
        assert (
            run["machine"]
            and re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"])
            and re.match("python |make ", run["command"])
        )
    assert sorted(shown_runs(pages)) == sorted(
        (file, name) for file, run in runs.items() for name in run["tables"]
    )
    for page in (root / "docs" / "evidence").glob("benchmarks*.md"):
        assert doc_figures.typed(page.read_text()) == []
    assert doc_figures.typed("<!-- figures: a/b -->\n| 1 |\n<!-- /figures -->\n| 2 |\n") == ["| 2 |"]


def words_of_bugs(page):
    """The words in the table of a page of bugs, and those that each section's first and last command print."""
    table, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    rows = re.findall(r"^\| \[.*?\]\(#.*?\) \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    shown = [
        re.findall(r"^```console\n.*?: ([^:]*?)\n```$", one, re.DOTALL | re.MULTILINE) for one in sections
    ]
    return [word for row in rows for word in row], [word for one in shown for word in (one[0], one[-1])]


def test_the_table_of_bugs_says_what_the_commands_print(root, tmp_path):
    """Each bug has a word alone and one with samebits, as printed below (negative control: a row that says another)."""
    for page in sorted((root / "docs" / "evidence").glob("bugs-*.md")):
        table, printed = words_of_bugs(page)
        assert table == printed != []
        assert all(alone != mended for alone, mended in zip(table[::2], table[1::2], strict=True))
        wrong = tmp_path / page.name
        wrong.write_text(page.read_text().replace("| different | equal |", "| equal | equal |", 1))
        assert operator.ne(*words_of_bugs(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("page", with_programs())
def test_each_fence_of_a_page_runs(page, tmp_path):
    """Files are written and edited, commands print what the page shows, and the page's program runs, a second time too."""
    assert doc_pages.run_page(page, tmp_path) == []


def test_a_wrong_page_is_seen(tmp_path):
    """Negative control: a command that prints something else, a program that fails or prints otherwise, a wrong edit."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; echo two\none\n...\n$ echo three\n3\n```\n")
    assert doc_pages.run_page(page, tmp_path) == ["$ echo three\nthree\n"]
    page.write_text("```python\nprint(1)\n```\n```text output\n2\n```\n")
    assert "prints" in doc_pages.run_page(page, tmp_path)[0]
    page.write_text("```python\n1 / 0\n```\n")
    assert "ZeroDivisionError" in doc_pages.run_page(page, tmp_path)[0]
    page.write_text("```console\n$ false\n$ true\n```\n")
    assert "exit status 1" in doc_pages.run_page(page, tmp_path)[0]
    with pytest.raises(AssertionError):
        doc_pages.edited("a\nb\n", "-c\n+d\n")


def test_an_update_writes_the_output_of_the_right_one_of_two_equal_commands(tmp_path, root):
    """`tools/docs.py --update` mends the wrong outputs alone, in the order of the page, and a second time nothing."""
    page = tmp_path / "page.md"
    text = "# A\n\n```console\n$ cat n\n1\n$ echo 2 > n\n$ cat n\n{}\n$ cat n\n{}\n```\n"
    page.write_text(f"```text n\n```\n```console\n$ echo 1 > n\n```\n{text.format(7, 8)}")
    for _ in range(2):
        command = [sys.executable, root / "tools" / "docs.py", "--update", page]
        assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
        assert page.read_text().endswith(text.format(2, 2))


def test_fences_that_do_not_run_are_counted(root):
    """Each says why: it takes a GPU, a cluster, a framework, or a script of the reader's. At most so many as today."""
    blocks = [block for page in all_pages(root) for block in doc_pages.blocks(page)]
    programs = [block for block in blocks if block.language in doc_pages.PROGRAMS]
    left = [block for block in programs if not block.runs]
    assert all(len(block.info) > len(doc_pages.NOT_RUN) + 3 for block in left)
    assert len(left) <= 45 <= len(programs) - len(left)


def missing_for_agents(root, site):
    """The pages that llms.txt of a site does not name, and its links, and those of SKILL.md, that lead nowhere."""
    links = LINK.findall((site / "llms.txt").read_text())
    named = {link.rpartition(".")[0] for link in links}
    pages = {
        page.relative_to(root / "docs").with_suffix("").as_posix() for page in (root / "docs").rglob("*.md")
    }
    links += LINK.findall((site / "SKILL.md").read_text())
    return [
        *sorted(pages - named - {"index"}),
        *(link for link in dict.fromkeys(links) if not (site / link).is_file()),
    ]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(root, tmp_path):
    """`sphinx -n -W`: links, names, contents, llms.txt (negative control: a link to nothing, a page that is gone)."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*command, root / "docs", site], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert 'id="unreleased"' in (site / "reference" / "changelog.html").read_text()
    assert "IncompleteStateError" in (site / "reference" / "errors.html").read_text()
    assert missing_for_agents(root, site) == []
    for file in ("start/prove.md", "reference/schemas/verify.schema.json"):
        (site / file).rename(site / "gone")
        assert missing_for_agents(root, site) == [file]
        (site / "gone").rename(site / file)
    (site / "llms.txt").write_text((site / "llms.txt").read_text().replace("how-to/data.md", "how-to/gpu.md"))
    assert missing_for_agents(root, site) == ["how-to/data"]
    assert 'id="samebits.Run.steps"' in (site / "reference" / "api" / "samebits.html").read_text()
    op_table = (site / "reference" / "op-table.html").read_text()
    assert "<code>torch.linalg.svd</code>" in op_table and len(op_table) < 1_500_000
    shown = set(
        re.findall(
            r'src="\.\./_images/(\w+-(?:light|dark)\.svg)"', (site / "explanation" / "why.html").read_text()
        )
    )
    assert len(shown) == 12 and shown <= {file.name for file in (site / "_images").iterdir()}
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "conf.py").write_text("extensions = ['myst_parser']\n")
    (wrong / "index.md").write_text("# A\n[b](b.md)\n")
    bad = subprocess.run([*command, wrong, tmp_path / "none"], capture_output=True, text=True, timeout=600)
    assert bad.returncode != 0 and "b.md" in bad.stderr


def test_each_error_has_a_section(root):
    """docs/reference/errors.md has a heading for each public error and warning, with more than one sentence."""
    import samebits.errors as errors

    page = (root / "docs" / "reference" / "errors.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    kinds = {name for name, one in vars(errors).items() if isinstance(one, type) and name != "SamebitsError"}
    assert {*sections} == kinds
    assert all(len(re.findall(r"[.:]\s", text)) >= 1 for text in sections.values())


def test_the_page_on_evidence_requires_a_full_proof(root):
    """The checks in the command of docs/how-to/auditor.md that requires a proof are names of `verify`, and all kills are there."""
    page = (root / "docs" / "how-to" / "auditor.md").read_text()
    named = re.search(r"^\$ samebits verify --require (\S+) train.py$", page, re.MULTILINE)[1].split(",")
    assert {*check_plan.KILLS, "workers", "threads"} == {*named} <= {*check_plan.GROUPS, *check_plan.KILLS}
