"""The rules of the house: where things are, and what they are called (CONTRIBUTING.md, docs/names.md)."""

import ast
import re
from collections import defaultdict

import pytest

FULLEST = 15
BUDGET = {
    ".": 1110,
    "_inspect": 4520,
    "_native": 1520,
    "arithmetic": 9900,
    "audit": 5230,
    "callbacks": 1240,
    "checkpoint": 4360,
    "cli": 2220,
    "data": 8540,
    "determinism": 10170,
    "nn": 1630,
    "random": 5170,
    "replica": 4680,
    "rounding": 2590,
    "state": 930,
    "testing": 900,
    "train": 6410,
    "trainer": 1520,
}
"""Lines of each package, at most. They only fall: what raises one has a line in CHANGELOG that says what a user gets for it."""
INVENTED = {
    *(
        "told",
        "Told",
        "inhand",
        "InHand",
        "looked",
        "Alone",
        "Together",
        "Wishes",
        "goes_on",
        "set_aside",
        "aside",
    ),
    *(
        "newness",
        "no_known_numbers",
        "no_swaps",
        "told_in_the_users_words",
        "shelf",
        "Shelf",
        "draft",
        "Draft",
        "warden",
    ),
}
"""Names that were made up here for things that have a name in PyTorch, JAX or Python's library."""


def modules(package):
    return {file: ast.parse(file.read_text()) for file in sorted(package.rglob("*.py"))}


def definitions(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def full_folders(package):
    counts = defaultdict(int)
    for file in package.rglob("*.py"):
        counts[file.parent.relative_to(package).as_posix()] += file.name != "__init__.py"
    return {folder: number for folder, number in counts.items() if number > FULLEST}


def over_budget(package, budget):
    """Packages that have more lines than their number, and those without one."""
    lines = defaultdict(int)
    for file in package.rglob("*.py"):
        parts = file.relative_to(package).parts
        lines[parts[0] if len(parts) > 1 else "."] += len(file.read_text().splitlines())
    return {name: number for name, number in lines.items() if number > budget.get(name, 0)}


def classes_of_one_name(package):
    places = defaultdict(set)
    for file, tree in modules(package).items():
        for node in definitions(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(file.relative_to(package).as_posix())
    return {name: sorted(files) for name, files in places.items() if len(files) > 1}


def riddles(package):
    return [
        f"{file.relative_to(package)}: {doc.splitlines()[0]}"
        for file, tree in modules(package).items() for node in definitions(tree)
        if re.match(r"(What|Whether|Who|Whose|How)\b", doc := ast.get_docstring(node) or "")
    ]  # fmt: skip


def invented_names(package):
    found = set()
    for file, tree in modules(package).items():
        names = {file.stem.strip("_")}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name.strip("_"))
            elif isinstance(node, ast.arg):
                names.add(node.arg)
        found |= {f"{file.relative_to(package)}: {name}" for name in names & INVENTED}
    return found


def orphans(package, tests):
    """Test files whose name does not begin with the name of a module of the package that their folder names."""
    known = defaultdict(set)
    for path in package.rglob("*"):
        parts = [part.strip("_") for part in path.relative_to(package).with_suffix("").parts]
        known[parts[0]].update(parts)  # `_loop/steps.py` and `_loop` both count
        known["."].add(parts[0])
    lab = tests.parent / "lab"
    known["lab"] = {
        part for path in lab.rglob("*.py") for part in path.relative_to(lab).with_suffix("").parts
    }
    known["."] |= {package.name, "docs", "house", "names", "public", "readme"}
    return [
        file.relative_to(tests).as_posix() for file in sorted(tests.rglob("test_*.py"))
        if file.parent.name not in {"tools", "gpu"} and not any(
            f"{file.stem}_".startswith(f"test_{name}_") for name in known[(file.parent.relative_to(tests).parts or (".",))[0]]
        )
    ]  # fmt: skip


@pytest.fixture
def package(root):
    return root / "src" / "samebits"


@pytest.fixture
def untidy(tmp_path):
    """A package that breaks every rule."""
    package = tmp_path / "src" / "samebits"
    (package / "_loop").mkdir(parents=True)
    for number in range(FULLEST + 1):
        (package / "_loop" / f"part{number}.py").write_text("class Plan:\n    pass\n" if number < 2 else "")
    (package / "told.py").write_text('def step(looked):\n    """Whether it is."""\n')
    (tmp_path / "tests" / "loop").mkdir(parents=True)
    (tmp_path / "tests" / "loop" / "test_party.py").touch()
    (tmp_path / "tests" / "loop" / "test_part1_kill.py").touch()
    return package


def test_no_folder_is_too_full_to_read(package):
    """A folder of the package has at most 15 modules."""
    assert full_folders(package) == {}


def test_no_package_grows_past_its_budget(package):
    """A package has at most as many lines as BUDGET says, and BUDGET leaves no more than 1% of room."""
    assert over_budget(package, BUDGET) == {}
    assert set(over_budget(package, {name: number * 0.99 - 10 for name, number in BUDGET.items()})) == set(
        BUDGET
    )


def test_a_class_name_means_one_thing(package):
    """No two modules define a class of the same name."""
    assert classes_of_one_name(package) == {}


def test_no_docstring_is_a_riddle(package):
    """Docstrings are sentences with a subject: none begins with What, Whether, Who, Whose or How."""
    assert riddles(package) == []


def test_things_have_the_fields_names(package):
    """Names that were invented here do not come back as the name of a module, a class, a function or a parameter."""
    assert invented_names(package) == set()


def test_a_test_file_names_what_it_tests(package, root):
    """tests/<package>/test_<module>.py: its name begins with that of a module or folder of the package."""
    assert orphans(package, root / "tests") == []


def test_the_rules_of_the_house_see_what_breaks_them(untidy):
    """Negative control: a package that breaks each rule once is named once by each."""
    assert over_budget(untidy, {"_loop": 3, ".": 1115}) == {"_loop": 4}
    assert full_folders(untidy) == {"_loop": FULLEST + 1}
    assert classes_of_one_name(untidy) == {"Plan": ["_loop/part0.py", "_loop/part1.py"]}
    assert riddles(untidy) == ["told.py: Whether it is."]
    assert invented_names(untidy) == {"told.py: told", "told.py: looked"}
    assert orphans(untidy, untidy.parents[1] / "tests") == ["loop/test_party.py"]
