"""Packages are entered by their doors: the contracts of pyproject.toml, and that import-linter holds a package to them."""

import ast
import json
import re
import subprocess
import sys
import tomllib

import pytest

ENTERS = "samebits.** -> "


@pytest.fixture(scope="module")
def contracts(root):
    """The contracts of doors, by package."""
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {one["allowed_importers"][0]: one for one in linter["contracts"] if one["type"] == "protected"}


def doors(contract):
    return [one.removeprefix(ENTERS) for one in contract["ignore_imports"]]


def in_one_form(package, contract):
    return contract == {
        "name": f"{package} is entered by its doors",
        "type": "protected",
        "protected_modules": [f"{package}.*"],
        "allowed_importers": [package],
        "ignore_imports": [f"{ENTERS}{door}" for door in sorted(doors(contract))],
    }


def entered(graph, package, door):
    """The modules outside of the package that import a door of it."""
    return {
        one
        for one in graph.find_modules_that_directly_import(door)
        if not f"{one}.".startswith(f"{package}.")
    }


def write(folder, module, text=""):
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    for parent in file.relative_to(folder).parents[:-1]:
        (folder / parent / "__init__.py").touch()


def past_doors(folder, contract, *modules):
    """Lints a house in which a visitor imports all doors of a contract, and `modules`; returns those it may not."""
    imported = [*doors(contract), *modules]
    for module in imported:
        write(folder, module)
    write(folder, "samebits.visitor", "".join(f"import {module}\n" for module in imported))
    options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in contract.items())
    linter = f'[tool.importlinter]\nroot_package = "samebits"\n[[tool.importlinter.contracts]]\n{options}\n'
    (folder / "pyproject.toml").write_text(linter)
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    lint = [sys.executable, "-c", command, "--no-cache", "--no-logo"]
    done = subprocess.run(lint, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, [line.split()[3] for line in done.stdout.splitlines() if line.startswith("- ")]


def guided(package, layers):
    """True if a package's docstring names a file of it to read first, and the layer below its own."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    found = re.search(r"^Read `(\S+)` first\. Doors: .*\. Imports: `(\w+)` and below\.$", text, re.MULTILINE)
    own = next(number for number, layer in enumerate(layers) if package.name in layer)
    return bool(found) and (package / found[1]).exists() and found[2] in layers[own + 1]


def test_each_package_says_what_to_read_first(root, tmp_path):
    """Its docstring has a file that exists and the layer below (negative control: another file, another layer)."""
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    order = next(one["layers"] for one in linter["contracts"] if one["type"] == "layers")
    layers = [re.findall(r"samebits\.(\w+)", layer) for layer in order]
    packages = [init.parent for init in (root / "src" / "samebits").glob("*/__init__.py")]
    assert [one.name for one in packages if not guided(one, layers)] == []
    for wrong in (
        "Read `_no.py` first. Doors: here. Imports: `random` and below.",
        "Read `__init__.py` first. Doors: here. Imports: `train` and below.",
    ):
        write(tmp_path, "determinism.__init__", f'"""One.\n\n{wrong}\n"""\n')
        assert not guided(tmp_path / "determinism", layers)


def test_the_contracts_of_doors_have_one_form(contracts):
    """Each protects all modules of its package, new ones too, but for the doors that it lists in order."""
    assert [package for package, one in contracts.items() if not in_one_form(package, one)] == []
    package, contract = next(iter(contracts.items()))
    looser = {"allowed_importers": [package, "samebits.cli"], "protected_modules": [f"{package}._one"]}
    assert not any(in_one_form(package, {**contract, name: value}) for name, value in looser.items())


def test_each_package_has_a_contract(contracts, root):
    """A package without one could be entered anywhere."""
    package = root / "src" / "samebits"
    found = {f"samebits.{init.parent.name}" for init in package.glob("*/__init__.py")}
    assert found - set(contracts) == set()
    assert set(contracts) <= found


def test_a_door_is_entered(contracts):
    """Each door is imported by a module outside of its package: one that nobody uses is no door."""
    graph = pytest.importorskip("grimp").build_graph("samebits")
    unused = [
        door for package, one in contracts.items() for door in doors(one) if not entered(graph, package, door)
    ]
    assert unused == []
    assert entered(graph, "samebits.random", "samebits.random._torch_ops") == set()


def test_a_module_that_imports_past_a_door_is_named(contracts, tmp_path):
    """A visitor may import the package and its doors; the lint fails for a new module, and for one in a folder."""
    pytest.importorskip("importlinter")
    package, contract = next(iter(contracts.items()))
    assert past_doors(tmp_path, contract) == (0, [])
    for room in (f"{package}._new", f"{package}._folder.room"):
        assert past_doors(tmp_path, contract, room) == (1, [room])
