"""The names of torch that a person types, and the ops behind them."""

import itertools
import json
import subprocess
import sys

import pytest
import torch

from samebits.determinism import table
from samebits.determinism.table import _torch_names as torch_names

NOT_OPS = {"broadcast_shapes", "jiterator", "__rand__"}
"""No op of aten is behind these; `__rand__` has the letters of `rand`."""
NOT_LAYERS = {
    *("Container", "Identity", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
    *("Sequential", "RNNBase", "RNNCellBase", "CrossMapLRN2d", "LinearCrossEntropyOptions"),
}
"""Containers and bases, which compute nothing; CrossMapLRN2d is written in Python, loop by loop."""

CALLS = """
import itertools, json, sys, warnings
from collections import defaultdict
import torch
from torch.testing._internal import common_methods_invocations as opinfo
import samebits

def named_calls():
    for op in opinfo.op_db:
        yield op.name, op, op
        for alias in op.aliases:
            yield alias.name, alias.op, op

def samples_of(op):
    if torch.float32 not in op.supported_dtypes("cpu"):
        return []
    return list(itertools.islice(op.sample_inputs("cpu", torch.float32), 12))

def outcomes(call, samples):
    for sample in samples:
        try:
            call(sample.input, *sample.args, **sample.kwargs)
            yield False
        except samebits.errors.UnimplementedError:
            yield True
        except Exception:
            continue  # some samples are made to raise

found = defaultdict(list)
samebits.set_random_seed(0)
warnings.simplefilter("ignore")
run = sys.argv[1] == "run"
calls = [(name, call, samples_of(op) if run else []) for name, call, op in named_calls()]
with samebits.enable_op_determinism(across="machines"):
    for name, call, samples in calls:
        found[name] += outcomes(call, samples)
print(json.dumps(found))
"""
"""Prints, for each name by which torch's own tests call an op, and for each of its first samples (none without "run"), True
if it raises under across='machines'. A process of its own: that module of torch changes settings of the
process.
"""


def torchs_names(*words):
    done = subprocess.run([sys.executable, "-c", CALLS, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_every_name_of_torchs_own_tests_finds_its_op():
    """Each op and alias that torch tests by name has ops in the table."""
    names = torchs_names("names")
    lost = {name for name in names if not table.ops_of(name)}
    assert len(names) > 500
    assert {name for name in lost if not any(word in name for word in NOT_OPS)} == set()


def test_every_layer_of_torch_nn_finds_its_op():
    """Each module of torch.nn that computes has ops in the table."""
    lost = {name for name in torch.nn.modules.__all__ if not table.ops_of(f"torch.nn.{name}")}
    assert lost - NOT_LAYERS == set()


def test_the_ops_of_names_written_in_python_exist():
    """Each op that torch_names.toml names is a reviewed one; negative control: an invented name is no op."""
    named = set(itertools.chain.from_iterable(torch_names._written_in_python().values()))
    assert named - torch_names.known_ops() == set()
    assert table.ops_of("torch.no_such_op") == table.ops_of(
        "torch.distributed.gather"
    ) == () and "cumsum" in torch_names.names_near("torch.cumsumm")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("aten::sum.dim_IntList", "sum"),
        ("torch.nn.functional.cross_entropy", "cross_entropy_loss"),
        ("F.gelu", "gelu"),
        ("nn.BatchNorm3d", "batch_norm"),
        ("nn.LazyConv2d", "conv2d"),
        ("x.cumsum_", "cumsum"),
        ("torch.special.expit", "special_expit"),
        ("add_", "add_"),
    ],
)
def test_a_name_is_read_as_a_person_types_it(name, op):
    """With or without torch, nn, F, Tensor, case, dimensions and the overload."""
    assert table.ops_of(name) == (op,)


def said(name):
    """The kinds of the overloads behind a name: True for refused."""
    return {
        table.lookup(row.name, "cpu").machine in {"refused", "integers"}
        for op in table.ops_of(name) for row in table.reviewed().rows.values()
        if row.name.partition(".")[0] == op and row.form_of == row.name
    }  # fmt: skip


@pytest.mark.slow
def test_what_raises_on_any_cpu_is_what_the_table_says():
    """Of torch's samples of each op: where all raise, an overload is said to; where all overloads are said to, one raises."""
    found = torchs_names("run")
    wrong = {
        name for name, raises in found.items() if raises
        and ((all(raises) and True not in said(name)) or (said(name) == {True} and not any(raises)))
    }  # fmt: skip
    assert sum(map(any, found.values())) > 50 and wrong == set()
