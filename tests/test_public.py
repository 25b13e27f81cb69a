"""What is public is listed, documented, and has an example that runs."""

import doctest
import importlib.util
import inspect
import re
import types
from pathlib import Path

import pytest
import torch

import samebits


@pytest.fixture(scope="module")
def api():
    return _api()


def _api():
    spec = importlib.util.spec_from_file_location("api", Path(__file__).parents[1] / "tools" / "api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public():
    """Each public name that can be called, with its package; an error's example is the line that raises it."""
    api, seen = _api(), {}
    for package in api.packages():
        for name, value in api.names(package).items():
            if callable(value) and not (
                inspect.isclass(value) and issubclass(value, BaseException | Warning)
            ):
                seen.setdefault(id(value), pytest.param(value, id=f"{package.__name__}.{name}"))
    return list(seen.values())


def failures(value, name):
    """What the example of a docstring prints that it should not; None without an example."""
    test = doctest.DocTestParser().get_doctest(
        inspect.getdoc(value) or "", {"samebits": samebits, "torch": torch}, name, None, 0
    )
    if not test.examples:
        return None
    told = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
        test, out=told.append
    )
    return "".join(told)


def test_the_list_of_public_names_is_what_the_packages_give(api):
    """tests/golden/public_names.txt is what `python tools/api.py` writes: a name that is added, renamed or taken away is seen."""
    assert api.LIST.read_text() == api.listed(), "run: python tools/api.py"


def test_a_public_name_that_the_list_lacks_is_seen(api, monkeypatch):
    """Negative control: one more public function in a package makes another list."""
    extra = types.FunctionType((lambda: 0).__code__, {"__name__": "samebits.random"})
    monkeypatch.setattr(samebits.random, "extra", extra, raising=False)
    assert "samebits.random.extra\n" in api.listed() and "extra" not in api.LIST.read_text()


@pytest.mark.first_case_quick
@pytest.mark.parametrize("value", public())
def test_a_public_name_has_an_example_that_runs(value, tmp_path, monkeypatch):
    """The docstring has a line `>>> ...` at least, and doctest finds what it shows."""
    monkeypatch.chdir(tmp_path)
    assert failures(value, value.__name__) == ""


def test_a_wrong_example_is_seen():
    """Negative control: an example that shows another value fails, and a docstring without one is told from both."""

    def wrong():
        """Two.

        >>> 1 + 2
        2
        """

    assert "Expected:\n    2\nGot:\n    3" in failures(wrong, "wrong")
    assert failures(_api, "api") is None


def test_the_pages_name_nothing_that_is_not_there(root):
    """Each `samebits.a.b` in README.md and docs/ is a module or a name that can be imported."""
    for page in [root / "README.md", *(root / "docs").rglob("*.md")]:
        for name in set(re.findall(r"(?<![\w./-])samebits(?:\.[A-Za-z_]\w*)+(?![\w/])", page.read_text())):
            found = samebits
            for part in name.split(".")[1:]:
                if found.__name__ == "samebits.integrations" and importlib.util.find_spec(part) is None:
                    assert (root / "src/samebits/integrations" / f"{part}.py").exists()
                    break  # it imports a library that is not installed
                if not hasattr(found, part) and inspect.ismodule(found):
                    importlib.import_module(f"{found.__name__}.{part}")
                found = getattr(found, part)
