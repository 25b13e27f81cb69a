"""The rules of the house: where things are, and what they are called (CONTRIBUTING.md, docs/reference/glossary.md)."""

import ast
import functools
import re
from collections import defaultdict
from itertools import pairwise

import pytest

DEEPEST = 2
"""Folders below samebits/ on the way to a module, at most."""
FRAGMENT = 80
"""A module of fewer lines with one importer, in its own folder, belongs into that importer."""
KEPT = {
    "determinism/_guards/numpy_constructors.py": "a frame of this file is that of a constructor, and no draw",
    "determinism/_ops/grid_sample.py": "an op's own room, which a reader finds by the op's name",
    "trainer/_history.py": "the class that `fit` returns, which a reader finds by its name",
}
"""Fragments that stay files, and why."""
OVERRIDING = 2
"""Classes that override a concrete method of a class of ours, at most: the number only falls."""
BUDGET = 90754
"""Lines of the package, at most. The number falls with what is deleted, and rises by what an issue grants alone."""
ROOM = 300
"""Lines of the budget that may be unused: who deletes more lowers it."""
INVENTED = set(
    """told Told inhand InHand looked Alone Together Wishes goeson setaside aside newness noknownnumbers noswaps
    toldintheuserswords shelf Shelf draft Draft warden""".split()  # noqa: SIM905
)
"""Names, without underscores, that were made up here for things that have one in PyTorch, JAX or Python's library."""


tree_of = functools.cache(ast.parse)
"""Parses a source text once for all rules."""


def modules(package):
    return {file: tree_of(file.read_text()) for file in sorted(package.rglob("*.py"))}


def definitions(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def deep_modules(package):
    """Modules with more folders below the package than DEEPEST."""
    return [
        file.relative_to(package).as_posix() for file in sorted(package.rglob("*.py"))
        if len(file.relative_to(package).parts) - 1 > DEEPEST
    ]  # fmt: skip


def importers(package):
    """Of each module (dotted name), those that import it or a name of it."""
    trees = {
        ".".join((package.name, *file.relative_to(package).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): tree
        for file, tree in modules(package).items()
    }
    found = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    full = f"{node.module}.{one.name}"
                    found[full if full in trees else node.module].add(name)
    return found


def fragments(package):
    """Modules of fewer than FRAGMENT lines whose one importer is in the same folder; an `__init__` does not count."""
    found = []
    for name, users in importers(package).items():
        file = package.parent.joinpath(*name.split(".")).with_suffix(".py")
        if not file.exists() or len(users) != 1:
            continue
        user = package.parent.joinpath(*next(iter(users)).split(".")).with_suffix(".py")
        if user.parent == file.parent and user.exists() and len(file.read_text().splitlines()) < FRAGMENT:
            found.append(file.relative_to(package).as_posix())
    return sorted(found)


def overrides(package):
    """Classes of the package that override a concrete method of a class of the package."""
    classes = {
        node.name: node
        for tree in modules(package).values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    return {node.name for node in classes.values() if _methods(node) & _inherited(node, classes)}


def _methods(node):
    """The concrete methods of a class: neither special, nor abstract, nor without a body."""
    return {
        one.name for one in node.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("__")
        and not any("abstract" in ast.unparse(by) for by in one.decorator_list)
        and not all(isinstance(line, ast.Raise | ast.Pass) or _is_text(line) for line in one.body)
    }  # fmt: skip


def _inherited(node, classes):
    found = set()
    for base in node.bases:
        above = classes.get(ast.unparse(base).split("[")[0].rpartition(".")[2])
        if above is not None and above is not node:
            found |= _methods(above) | _inherited(above, classes)
    return found


def _is_text(node):
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str | type(...))
    )


def out_of_budget(package, budget):
    """The lines of the package past its budget; those that are missing to its ROOM, as a negative number."""
    past = sum(len(file.read_text().splitlines()) for file in package.rglob("*.py")) - budget
    return max(past, 0) or min(past + ROOM, 0)


def classes_of_one_name(package):
    places = defaultdict(set)
    for file, tree in modules(package).items():
        for node in definitions(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            # An adapter's public class has the name that its library gives such a thing: Trainer.
            if "integrations" not in file.parts or node.name.startswith("_"):
                places[node.name.lstrip("_")].add(file.relative_to(package).as_posix())
    return {name: sorted(files) for name, files in places.items() if len(files) > 1}


def riddles(package):
    """First lines of docstrings, and of strings after assignments, that have no subject."""
    return [
        f"{file.relative_to(package)}: {doc.splitlines()[0]}"
        for file, tree in modules(package).items() for doc in documentation(tree)
        if re.match(r"(What|Whether|Who|Whose|How)\b", doc)
    ]  # fmt: skip


def documentation(tree):
    for node in definitions(tree):
        yield ast.get_docstring(node) or ""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, text in pairwise(body if isinstance(body, list) else ()):
            if isinstance(before, ast.Assign | ast.AnnAssign) and _is_text(text):
                yield str(text.value.value)


def invented_names(package):
    found = set()
    for file, tree in modules(package).items():
        names = {file.stem.strip("_")}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name.strip("_"))
            elif isinstance(node, ast.arg):
                names.add(node.arg)
        banned = {name.replace("_", "") for name in INVENTED}
        found |= {f"{file.relative_to(package)}: {one}" for one in names if one.replace("_", "") in banned}
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
    (package / "_loop" / "part0.py").write_text("class Plan:\n    def run(self):\n        return 1\n")
    (package / "_loop" / "part1.py").write_text(
        "from samebits._loop.part0 import Plan as Base\n\nclass Plan:\n    pass\n"
    )
    (package / "told.py").write_text(
        'def step(looked, in_hand):\n    """Whether it is."""\n\nclass Base:\n    def run(self):\n        return 1\n\nclass Other(Base):\n    def run(self):\n        return 2\n'
    )
    (package / "_a" / "_b" / "_c").mkdir(parents=True)
    (package / "_a" / "_b" / "_c" / "x.py").write_text('LIMIT = 3\n"""How many there are."""\n')
    (tmp_path / "tests" / "loop").mkdir(parents=True)
    (tmp_path / "tests" / "loop" / "test_party.py").touch()
    (tmp_path / "tests" / "loop" / "test_part1_kill.py").touch()
    return package


def test_no_folder_is_deeper_than_two_below_the_package(package):
    """A module has at most two folders between itself and samebits/."""
    assert deep_modules(package) == []


@pytest.mark.slow
def test_no_module_is_a_fragment_of_its_one_importer(package):
    """A module with one importer, in its own folder, has at least 80 lines, or is part of that importer."""
    assert fragments(package) == list(KEPT)


def test_a_class_is_abstract_or_final(package):
    """No more classes than OVERRIDING override a concrete method of a class of ours, and the number leaves no room."""
    assert len(overrides(package)) == OVERRIDING


def test_no_package_grows_past_its_budget(package):
    """The package has at most as many lines as BUDGET says, and BUDGET leaves no more than ROOM."""
    assert out_of_budget(package, BUDGET) == 0


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
    assert [out_of_budget(untidy, budget) for budget in (18, 19, 19 + ROOM, 20 + ROOM)] == [1, 0, 0, -1]
    assert deep_modules(untidy) == ["_a/_b/_c/x.py"]
    assert fragments(untidy) == ["_loop/part0.py"]
    assert overrides(untidy) == {"Other"}
    assert classes_of_one_name(untidy) == {"Plan": ["_loop/part0.py", "_loop/part1.py"]}
    assert riddles(untidy) == ["_a/_b/_c/x.py: How many there are.", "told.py: Whether it is."]
    assert invented_names(untidy) == {"told.py: told", "told.py: looked", "told.py: in_hand"}
    assert orphans(untidy, untidy.parents[1] / "tests") == ["loop/test_party.py"]
