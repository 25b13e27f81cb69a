"""What starting imports: nothing heavy before it is needed, and nothing twice."""

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import samebits
from samebits._lazy_imports import late_imports, when_imported

HEAVY = {"torch", "numpy", "numba", "llvmlite", "rich", "safetensors", "cloudpickle", "scipy", "asyncio"}
COMMANDS = ("run", "verify", "commits", "diff", "env", "ops", "replica")
COMMAND = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from samebits.cli import main
sys.argv[0] = "samebits"
main()
"""


def command(python, *words):
    """What `samebits WORDS` prints, and the top-level modules that it has imported."""
    done = python(COMMAND, *words, env={"PYTHONHASHSEED": "0"})
    return done.stdout, {name.partition(".")[0] for name in json.loads(done.stderr)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_version_and_help_import_nothing_heavy(python, words):
    """Neither torch nor NumPy, Numba, rich or asyncio: they take 3 s together, and to print a text needs none."""
    printed, imported = command(python, *words)
    assert printed and not imported & HEAVY
    assert "samebits" in imported  # negative control: what is imported is seen


def test_a_command_that_computes_imports_torch(python):
    """Negative control of the test above: `samebits env` is no text."""
    assert "torch" in command(python, "env")[1]


def test_help_lists_every_command_with_its_help(python):
    """The first words of each command's own help stand in the list."""
    listed, _ = command(python, "--help")
    for name in COMMANDS:
        (line,) = [line for line in listed.splitlines() if line.split()[:1] == [name]]
        assert len(line.split()) > 4


def test_the_version_is_that_of_the_installed_package():
    """`samebits --version` reads no metadata, so both must say the same."""
    project = Path(__file__).parent.parent / "pyproject.toml"
    assert f'version = "{samebits.__version__}"' in project.read_text()


@pytest.mark.slow
def test_run_starts_again_before_it_imports_torch(tmp_path):
    """`samebits run` starts Python again to fix the hash seed: of the two processes only the second imports torch."""
    (tmp_path / "empty.py").write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    command = [sys.executable, "-X", "importtime", "-m", "samebits", "run", "empty.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    names = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    assert names.count("samebits.cli") == 2  # negative control: both processes print what they import
    assert names.count("torch") == names.count("typer") == 1


@pytest.mark.parametrize(("option", "code"), [("-I", 2), ("-E", 2), ("-s", 0)])
def test_run_says_that_the_hash_seed_cannot_be_fixed(tmp_path, option, code):
    """Under -I and -E Python reads no PYTHONHASHSEED: one line, and the script is not started; -s leaves it (control)."""
    (tmp_path / "hashes.py").write_text("print(hash('a'))")
    found = f"import sys; sys.path.insert(0, {str(Path(samebits.__file__).parent.parent)!r}); "
    called = "sys.argv = ['samebits', 'run', 'hashes.py']; from samebits.cli import main; main()"
    command = [sys.executable, option, "-c", found + called]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (f"without {option}" in done.stderr) == (code == 2)
    assert (done.stdout == "") == (code == 2)


def test_importing_the_package_imports_nothing_else(python):
    """`import samebits`: two small modules of its own and the standard library's; the rest comes when it is asked for."""
    out = python(
        "import sys\nbefore = set(sys.modules)\nimport samebits\nnew = set(sys.modules) - before\n"
        "print(*sorted(m for m in new if m.partition('.')[0] not in sys.stdlib_module_names))"
    ).stdout
    assert out.split() == ["samebits", "samebits._context", "samebits._lazy_imports"]


@pytest.mark.slow
def test_every_part_works_after_a_bare_import(python):
    """samebits.testing, samebits.replica, samebits.checkpoint, ...: no second import statement, and `dir` lists them."""
    for name in (*samebits.__all__, "audit", "train", "trainer", "cli"):
        assert name in dir(samebits)
    out = python(
        "import samebits\n"
        "print(samebits.checkpoint.list_commits.__name__, samebits.testing.run_and_kill.__name__,\n"
        "      samebits.replica.analyze.__name__, samebits.audit._first_difference.__name__, samebits.data.check.__name__)\n"
    ).stdout
    assert out.split() == [
        "list_commits",
        "run_and_kill",
        "analyze",
        "samebits.audit._first_difference",
        "check",
    ]


def test_a_name_that_is_not_there_is_an_attribute_error():
    """As of every module; `hasattr` and a misspelt import say so."""
    with pytest.raises(AttributeError, match="module 'samebits' has no attribute 'Runn'"):
        samebits.Runn
    with pytest.raises(ImportError, match="Runn"):
        from samebits import Runn  # noqa: F401


def lazy_packages():
    folder = Path(samebits.__file__).parent
    return [file for file in folder.rglob("__init__.py") if "attach(" in file.read_text()]


@pytest.mark.parametrize("file", lazy_packages(), ids=lambda file: file.parent.name)
def test_what_type_checkers_see_is_imported_late(file):
    """Each name under `if TYPE_CHECKING:` is given under the same name, and the module named there has it."""
    (block,) = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)]
    folders = file.parent.relative_to(Path(samebits.__file__).parent).parts
    package = import_module(".".join(("samebits", *folders)))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == late_imports(file.read_text())
    for name, module in seen.items():
        assert getattr(package, name) is getattr(sys.modules[module], name)
        assert name in dir(package)


def test_what_is_asked_for_once_is_kept(tmp_path, monkeypatch):
    """The second access is a plain attribute: `__getattr__` is not called again."""
    (tmp_path / "lazy_one.py").write_text("VALUE = object()")
    (tmp_path / "lazy_package.py").write_text(
        "from typing import TYPE_CHECKING\nfrom samebits._lazy_imports import attach\n"
        "if TYPE_CHECKING:\n    from lazy_one import VALUE as VALUE\n"
        "__getattr__, __dir__ = attach(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = import_module("lazy_package")
    assert "VALUE" not in vars(package) and "VALUE" in dir(package)
    assert package.VALUE is vars(package)["VALUE"]


def test_dir_after_the_import_of_a_lazy_package(python):
    """`dir(samebits)` looks at modules that are there, which may import another: it iterates over a copy."""
    assert python("import samebits, samebits.nn\nprint('nn' in dir(samebits))").stdout == "True\n"


@pytest.fixture
def awaited(tmp_path, monkeypatch):
    """A module that is not imported yet, and a list of what was called when it was."""
    (tmp_path / "awaited_module.py").write_text(
        "import os\nif 'FAIL_IMPORT' in os.environ:\n    raise ValueError\nX = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield []
    sys.modules.pop("awaited_module", None)


def test_an_action_waits_for_an_import_and_leaves_nothing_behind(awaited):
    """It is called once, when the module's code has run; `sys.meta_path` and the loader are as they were."""
    before = list(sys.meta_path)
    when_imported("awaited_module", lambda module: awaited.append(module.X))
    assert awaited == [] and sys.meta_path != before
    import awaited_module

    assert (
        awaited == [1]
        and sys.meta_path == before
        and "exec_module" not in vars(awaited_module.__spec__.loader)
    )
    # it is there: now
    assert when_imported("awaited_module", lambda module: awaited.append(module.X + 1)) is None
    assert awaited == [1, 2]


def test_a_search_without_an_import_does_not_use_up_the_wait(awaited):
    """`importlib.util.find_spec`, which libraries ask whether torch is installed, imports nothing."""
    when_imported("awaited_module", lambda module: awaited.append(module.X))
    assert find_spec("awaited_module") is not None and awaited == []
    import awaited_module  # noqa: F401

    assert awaited == [1]


def test_an_import_that_fails_is_waited_for_again(awaited, monkeypatch):
    """The action comes with the import that succeeds."""
    when_imported("awaited_module", lambda module: awaited.append(module.X))
    monkeypatch.setenv("FAIL_IMPORT", "1")
    with pytest.raises(ValueError):
        import awaited_module
    assert awaited == []
    monkeypatch.delenv("FAIL_IMPORT")
    import awaited_module  # noqa: F401

    assert awaited == [1]


def test_two_may_wait_for_one_module_and_one_may_leave(awaited):
    """Each that still waits is called; one that was withdrawn is not, even between the search and the import."""
    before = list(sys.meta_path)
    when_imported("awaited_module", lambda module: awaited.append("first"))
    leaving = when_imported("awaited_module", lambda module: awaited.append("never"))
    when_imported("awaited_module", lambda module: leaving.withdraw())
    import awaited_module  # noqa: F401

    assert "first" in awaited and sys.meta_path == before


LATER = """
import samebits
import torch, random
torch.manual_seed(2**40 + 1)  # as large as a number of the operating system
random.seed(5)
for _ in range(5_000):
    random.random()
samebits.enable_op_determinism()
torch.rand(2), random.random()
print("drawn")
"""


@pytest.mark.slow
def test_a_seed_that_is_set_before_samebits_is_used_counts(python):
    """What was there at `import samebits` tells it, though the parts that look are imported later."""
    assert python(LATER).stdout == "drawn\n"
    for seeding in ("torch.manual_seed(2**40 + 1)", "random.seed(5)"):  # negative controls
        refused = python(LATER.replace(seeding, "pass"), code=1)
        assert "UnseededError" in refused.stderr


FILLED = """
import samebits
import numpy as np
loader = samebits.data.DataLoader([1, 2], seed=1)
list(loader)  # sets the generators, and puts them back
samebits.enable_op_determinism()
np.random.rand()
"""


@pytest.mark.slow
def test_what_samebits_sets_and_puts_back_is_no_seed_of_the_programs(python):
    """NumPy forgets its system's seed at any seeding: it was noted before, so an unseeded draw is still refused."""
    assert "UnseededError" in python(FILLED, code=1).stderr
    python(FILLED.replace("np.random.rand()", "np.random.seed(1), np.random.rand()"))  # negative control


USED = """
import sys, torch
before = set(sys.modules)
import samebits
samebits.Run, samebits.data.DataLoader, samebits.nn.Dropout
samebits.set_random_seed(1)
samebits.enable_op_determinism(across="threads")
new = set(sys.modules) - before
print(*sorted({name.partition(".")[0] for name in new} - sys.stdlib_module_names))
print(*sorted(name for name in new if name.startswith("torch.")))
"""


@pytest.mark.slow
def test_what_a_training_script_names_imports_no_more_than_it_needs(python):
    """A Run, a loader and the switch: no Numba, rich, typer or safetensors, and of torch nothing that `import torch` leaves out."""
    packages, torchs = python(USED).stdout.splitlines()
    assert not {"numba", "llvmlite", "rich", "typer", "safetensors", "scipy", "fsspec"} & set(
        packages.split()
    )
    assert torchs == "" and "samebits" in packages.split()
