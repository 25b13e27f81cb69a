"""Run directories at URLs, and the machines that use them."""

import pytest

from samebits._native.machine_code import cache_folder
from url_storages import reset


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)` goes on as on another machine, whose staging folders are its own. All storages are empty."""
    cache_folder()  # kernels stay where they are

    def go_to(name):
        monkeypatch.setenv("SAMEBITS_CACHE_DIR", str(tmp_path / "machines" / name))

    go_to("a")
    reset()
    return go_to


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://bucket{tmp_path}/run" if request.param == "memory" else f"file://{tmp_path}/deep/run"
