"""The op table of the site: each name is there once, and its answers are those of `samebits ops NAME --json`."""

import importlib
import json
import re

import pytest
from typer.testing import CliRunner

from samebits.cli._app import app

SAMPLE = [
    "torch.nn.functional.gelu", "torch.linalg.svd", "Tensor.index_add_", "torch.nn.LSTM", "torch.stft", "Tensor.cumsum",
    "torch.nn.functional.cross_entropy", "torch.fft.rfft", "torch.special.i0", "torch.bincount", "torch.kthvalue",
    "torch.nn.MaxUnpool2d", "torch.add", "torch.empty", "aten::_linalg_svd",
]  # fmt: skip


@pytest.fixture(scope="module")
def table_page(request):
    """The program that writes the page, and the ops of each name in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(request.config.rootpath / "docs" / "_ext")
        page = importlib.import_module("op_table")
    named = [(name, ops) for ops, names in page.groups().items() for name in names]
    assert len(named) == len(dict(named)) > 2000
    return page, dict(named)


@pytest.fixture
def shown(table_page):
    """For a name: True if the page has `raises` for `run again`, `any CPU` and `GPU`."""
    page, ops = table_page

    def raises(name):
        html = page.row(ops[name], [name])
        cells = re.findall(r"<td data-head[^>]*>([^<]*)</td>", html)
        assert f"<code>{name}</code>" in html and len(cells) == 4
        return tuple(cells[place] == "raises" for place in (0, 2, 3))

    return raises


def raising(name):
    """For `run again`, `any CPU` and `GPU`: True if the JSON of `samebits ops NAME` has an overload that raises."""
    done = CliRunner().invoke(app, ["ops", name, "--json", "-"])
    ops = [one for one in json.loads(done.stdout)["ops"] if one["verdict"] != "no kernel"]
    cpu, cuda = ([one for one in ops if one["device"] == device] for device in ("cpu", "cuda"))
    return (
        any(one["verdict"] == "refused" for one in cpu),
        any(one["machine"] in {"refused", "integers"} for one in cpu),
        any(one["verdict"] == "refused" for one in cuda),
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_says_what_the_command_says(name, shown):
    """A name is in the table, and raises where `samebits ops NAME --json` says so."""
    assert shown(name) == raising(name)


def test_a_wrong_answer_is_seen(shown):
    """Negative control: the answers of another op are not those of the command; both kinds are in the sample."""
    assert shown("torch.linalg.svd") != raising("torch.nn.functional.gelu")
    assert {shown(name)[1] for name in SAMPLE} == {True, False}


def test_names_that_are_no_op_are_in_no_row(table_page):
    """Functions that stand for no op are left out: the command refuses their names."""
    for name in ("torch.set_num_threads", "torch.compile", "torch.nn.Sequential"):
        assert name not in table_page[1]
        assert CliRunner().invoke(app, ["ops", name]).exit_code != 0
