"""`samebits verify --demo`: the example in the package proves an installation."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest
import torch

from samebits.audit._verify import verification

SHORT = ["--checks", "run-again", "--steps", "4"]


def verify(folder, *words):
    """(exit status, standard error, report) of `samebits verify`, whose report is written to a file in the folder."""
    command = [sys.executable, "-m", "samebits", "verify", "--no-find-op", "--json", "report.json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = folder / "report.json"
    return done.returncode, done.stderr, json.loads(report.read_text()) if report.exists() else None


@pytest.fixture
def source(root):
    return (root / "src" / "samebits" / "audit" / "_verify" / verification.DEMO).read_text()


def test_the_demo_works_in_a_folder_of_its_own(tmp_path):
    """Options go with it; the report is where the caller is, and nothing else; the script is demo.py."""
    status, errors, report = verify(tmp_path, "--demo", *SHORT)
    assert status == 0, errors
    assert report["script"] == "demo.py" and report["verdict"].startswith(
        "REPRODUCED: the same bits in all 4 "
    )
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
def test_a_demo_whose_seed_is_another_each_time_is_seen(tmp_path, source):
    """Negative control: the same script with its seed from the clock is not reproducible, with exit status 1."""
    assert source.count("set_random_seed(1)") == 1
    changed = source.replace("set_random_seed(1)", "set_random_seed(__import__('time').time_ns())")
    (tmp_path / "demo.py").write_text(changed)
    status, _, report = verify(tmp_path, *SHORT, "demo.py")
    assert status == 1 and report["verdict"].startswith("NOT REPRODUCIBLE: run again: before the first step")


def test_nothing_of_samebits_imports_the_demo():
    """It is a script: importing it trains nothing, and the package does not."""
    spec = importlib.util.find_spec("samebits.audit._verify.demo")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.main)
    code = "import sys, samebits.cli, samebits.audit._verify.verification; print('samebits.audit._verify.demo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.slow
def test_the_whole_demo_is_verified_with_the_digest_of_the_page(tmp_path, root):
    """VERIFIED, each row proven and across machines; with the torch of the page, the digest that it shows."""
    status, errors, report = verify(tmp_path, "--demo")
    assert status == 0, errors
    assert report["verdict"].startswith("VERIFIED: the same bits in all 48 steps") and report["not_run"] == {}
    assert "Not proven" not in report["verdict"] and "a CPU with AVX2" in report["proven"]
    page = (root / "docs" / "start" / "install.md").read_text()
    shown, version = re.search(r"xxh3-128:\w+", page)[0], re.search(r"With torch ([\d.]+\d)", page)[1]
    if torch.__version__.startswith(version):
        assert report["final"].startswith(shown)
