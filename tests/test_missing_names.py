"""A name that a package lacks: the error says where it is, or which one was meant, and imports nothing heavy."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import samebits
from samebits import _missing_names as missing_names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DataLoader", "Use samebits.data.DataLoader."),
        ("Pipeline", "Use samebits.data.Pipeline."),
        ("Dropout", "Use samebits.nn.Dropout."),
        ("EarlyStopping", "Use samebits.callbacks.EarlyStopping."),
        ("AdamW", "Use samebits.rounding.optim.AdamW."),
        ("key", "Use samebits.random.key."),
        ("CommitError", "Use samebits.errors.CommitError."),
        ("Dataset", "Use samebits.data.Pipeline, or a torch.utils.data.Dataset in samebits.data.DataLoader."),
        ("seed_everything", "Use samebits.set_random_seed."),
        ("dataloader", "Did you mean samebits.data.DataLoader?"),
        ("early_stopping", "Did you mean samebits.callbacks.EarlyStopping?"),
        ("trainr", "Did you mean samebits.Trainer?"),
    ],
)
def test_a_name_of_a_part_says_where_it_is(name, words):
    """The error of `samebits.NAME` ends with the line to type, and so does `from samebits import NAME`; hasattr is False."""
    with pytest.raises(AttributeError) as caught:
        getattr(samebits, name)
    assert str(caught.value) == f"module 'samebits' has no attribute {name!r}. {words}"
    with pytest.raises(ImportError) as caught:
        exec(f"from samebits import {name}")
    assert str(caught.value) == f"cannot import name {name!r} from 'samebits'. {words}"
    assert not hasattr(samebits, name)


@pytest.mark.parametrize("name", ["quaternion", "__wrapped__", "_DataLoader"])
def test_a_name_that_nobody_has_is_pythons_own_error(name):
    """Negative control: without a near name, and for private names, nothing is guessed."""
    with pytest.raises(AttributeError) as caught:
        getattr(samebits, name)
    assert str(caught.value) == f"module 'samebits' has no attribute {name!r}"
    with pytest.raises(ImportError, match=rf"cannot import name '{name}' from 'samebits' \("):
        exec(f"from samebits import {name}")


def test_a_name_asked_for_in_another_package_is_found_too():
    """samebits.nn.DataLoader names its place; a near name of the package itself goes before others."""
    with pytest.raises(
        AttributeError, match=r"'samebits.nn' has no attribute 'DataLoader'. Use samebits.data.DataLoader"
    ):
        samebits.nn.DataLoader
    with pytest.raises(AttributeError, match=r"Did you mean samebits.nn.Dropout\?"):
        samebits.nn.dropOut
    with pytest.raises(AttributeError, match=r"Use samebits.random.dropout\."):
        samebits.dropout


def test_every_public_name_is_found(root):
    """The names read from the text of the packages are those of docs/reference/api.md, which imports them."""
    spec = importlib.util.spec_from_file_location("api", root / "tools" / "api.py")
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    for package in api.packages()[1:]:
        for name in api.names(package):
            here = f"{package.__name__}.{name}"
            assert here in missing_names.hint("samebits", name) or hasattr(samebits, name), here


SEARCH = """
import sys, samebits
print(hasattr(samebits, "DataLoader"), "torch" in sys.modules, "numpy" in sys.modules)
samebits.dataloader
"""


def test_the_error_imports_nothing_heavy_and_is_alone():
    """A failing hasattr imports neither torch nor NumPy; Python's own guess ("Did you mean: 'data'?") is not added."""
    done = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "False"]
    last = done.stderr.splitlines()[-1]
    assert last.endswith("has no attribute 'dataloader'. Did you mean samebits.data.DataLoader?")


@pytest.mark.parametrize(
    "name", ["callbacks", "checkpoint", "data", "determinism", "nn", "replica", "rounding", "testing"]
)
def test_dir_lists_no_helper(name):
    """dir() of a package shows neither TYPE_CHECKING nor `attach`, and does show its names."""
    package = getattr(samebits, name)
    assert not {"TYPE_CHECKING", "attach"} & {*dir(package)}
    assert [one for one in dir(package) if not one.startswith("_")]
    assert not {"TYPE_CHECKING", "attach", "when_imported"} & {*dir(samebits)}


def test_the_package_is_typed():
    """py.typed lies beside `__init__.py`, so that type checkers read the annotations (PEP 561)."""
    assert (Path(samebits.__file__).parent / "py.typed").is_file()
