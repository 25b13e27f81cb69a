import sys
import tomllib
from pathlib import Path

import pytest

import samebits


@pytest.mark.slow
def test_an_untested_torch_is_named_once_in_a_warning_and_in_the_fingerprint(python):
    """With another torch than the tested ones, import warns once, and the fingerprint says so; with a tested one not."""
    source = (
        "import warnings, torch\n"
        "torch.__version__ = VERSION\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import samebits, importlib\n"
        "    import samebits.data\n"
        "own = [w for w in caught if w.category.__name__ == 'UntestedVersionWarning']\n"
        "print(len(own), samebits.determinism.environment_fingerprint()['torch_tested'])\n"
        "print(*[w.message for w in own])\n"
    )
    other = python(source.replace("VERSION", "'2.99.1+cpu'")).stdout
    assert other.startswith("1 False") and "2.99.1" in other and "samebits verify" in other
    assert python(source.replace("VERSION", "'2.13.0+cpu'")).stdout.startswith("0 True")


def test_the_public_names_are_all_there():
    """Every name in `__all__` exists and has a docstring."""
    for name in samebits.__all__:
        assert getattr(samebits, name).__doc__, name


def test_importing_costs_no_console_or_report_library(python):
    """`import samebits` loads neither typer, jinja2 nor matplotlib, nor torch's compiler."""
    out = python(
        "import sys, torch\nbefore = set(sys.modules)\nimport samebits\n"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))\n"
        "print('torch._dynamo' in sys.modules, 'torch._inductor' in sys.modules)\n"
    ).stdout
    assert not {"typer", "jinja2", "matplotlib"} & set(out.splitlines()[0].split())
    assert out.splitlines()[1] == "False False"


def test_the_version_is_told():
    """The package tells its version, which is that of pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert samebits.__version__ == project["version"]
    assert samebits.__version__.startswith("0.1")
    assert "samebits" in sys.modules
