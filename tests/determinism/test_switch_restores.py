import os
import random
import sys

import numpy
import pytest
import torch
import torch.fx.experimental.proxy_tensor

import samebits
from samebits.determinism import _all_replacements as replacements
from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._replacement import Replacement
from samebits.errors import InvalidArgumentError

PATCHED = (
    (torch, "seed"),
    (torch.random, "seed"),
    (torch.cuda, "seed_all"),
    (torch.jit, "script"),
    (torch._C.Generator, "seed"),
    (torch.fx.experimental.proxy_tensor, "proxy_call"),
    (torch.utils.data.distributed.DistributedSampler, "__init__"),
    (numpy.random, "rand"),
    (numpy.random, "RandomState"),
    (numpy.random, "Philox"),
    (numpy.random.mtrand, "_rand"),
    (numpy.random.mtrand, "_MT19937"),
    (numpy.random.bit_generator, "randbits"),
    (random, "seed"),
    (random, "random"),
    (random.Random, "seed"),
    (random.Random, "setstate"),
    (random.SystemRandom, "seed"),
    (torch, "use_deterministic_algorithms"),
    (torch, "set_deterministic_debug_mode"),
    (torch.Tensor, "share_memory_"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch.library.Library, "impl"),
    (type(torch.ops), "load_library"),
    (type(torch.backends.cudnn), "benchmark"),
    (type(torch.backends.cudnn), "deterministic"),
    (torch.distributed.rpc, "init_rpc"),
)


def dispatch_tables():
    """What the dispatcher holds of every op: all registered kernels, and the table computed from them."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return {name: (torch._C._dispatch_dump(name), torch._C._dispatch_dump_table(name)) for name in names}


def attributes():
    inherited = ["random" in vars(random._inst), "__call__" in vars(type(torch.Generator))]
    return [vars(owner)[name] for owner, name in PATCHED] + list(sys.meta_path) + inherited


def same(these, those):
    return len(these) == len(those) and all(a is b for a, b in zip(these, those))


def leftovers(before, after):
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]


@pytest.mark.slow
def test_off_leaves_no_kernel_and_no_attribute_behind(python):
    """After on and off, seeded or not, the dispatch tables of all aten ops and all replaced attributes are as before."""
    out = python(
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_switch_restores import *\n"
        "before, were = dispatch_tables(), attributes()\n"
        "for arguments in ({}, {'across': 'threads'}, {'on_unimplemented': 'warn'}):  # the first: unseeded\n"
        "    samebits.enable_op_determinism(**arguments)\n"
        "    changed, moved = leftovers(before, dispatch_tables()), not same(were, attributes())\n"
        "    samebits.enable_op_determinism(False)\n"
        "    samebits.set_random_seed(0)\n"
        "    print(len(changed) > 5, moved, leftovers(before, dispatch_tables()), same(were, attributes()))\n"
    ).stdout
    assert out.splitlines() == ["True True [] True"] * 3


def test_one_kernel_left_behind_would_be_seen():
    """Negative control: a single override that is not removed shows in the comparison of the dispatch tables."""
    before = dispatch_tables()
    left = KernelOverrides()
    left.put("aten::sum.dim_IntList", "CPU", lambda kernel: kernel)
    try:
        assert leftovers(before, dispatch_tables()) == ["aten::sum.dim_IntList"]
    finally:
        left.remove()
    assert leftovers(before, dispatch_tables()) == []


def cannot(kernel):
    raise RuntimeError("cannot make it")


def test_an_error_on_the_way_on_undoes_everything(monkeypatch):
    """Enabling is all or nothing: an error in its middle leaves kernels, flags and functions as they were."""
    samebits.set_random_seed(0)
    broken = Replacement("aten::relu", cannot, "cannot be made")
    before, were, variables = dispatch_tables(), attributes(), dict(os.environ)
    monkeypatch.setattr(replacements, "REPLACEMENTS", (*replacements.REPLACEMENTS, broken))
    with pytest.raises(RuntimeError, match="cannot make it"):
        samebits.enable_op_determinism(across="threads")
    assert leftovers(before, dispatch_tables()) == [] and same(were, attributes())
    assert dict(os.environ) == variables
    assert not torch.are_deterministic_algorithms_enabled() and not samebits.op_determinism_enabled()


def test_a_change_that_fails_keeps_the_settings_before_it(monkeypatch):
    """On, and then asked for other arguments that cannot be had: the switch stays on as it was."""
    samebits.set_random_seed(0)
    broken = Replacement("aten::relu", cannot, "cannot be made", only_threads=True)
    monkeypatch.setattr(replacements, "REPLACEMENTS", (broken,))
    samebits.enable_op_determinism(across="runs")
    settings = told()
    with pytest.raises(RuntimeError, match="cannot make it"):
        samebits.enable_op_determinism(across="threads")
    assert told() == settings and settings["across"] == "runs"


def told():
    return samebits.determinism.environment_fingerprint()["op_determinism"]


def test_nested_blocks_with_other_arguments():
    """Inside a block its own arguments hold, behind it those of the block around it; the fingerprint tells them."""
    samebits.set_random_seed(0)
    strict = {"enabled": True, "across": "threads", "on_unimplemented": "raise"}
    with samebits.enable_op_determinism(across="threads"):
        assert told() == strict
        with samebits.enable_op_determinism(across="runs", on_unimplemented="warn"):
            assert told() == {"enabled": True, "across": "runs", "on_unimplemented": "warn"}
            with samebits.enable_op_determinism(False):
                assert told() == {"enabled": False}
            assert told()["on_unimplemented"] == "warn"
        assert told() == strict
    assert told() == {"enabled": False}


def test_an_unknown_way_to_treat_unimplemented_ops_is_refused():
    """`on_unimplemented` is 'raise' or 'warn'."""
    with pytest.raises(InvalidArgumentError, match="'raise' or 'warn'"):
        samebits.enable_op_determinism(on_unimplemented="ignore")
    assert not samebits.op_determinism_enabled()


def test_the_guard_that_removes_itself_leaves_our_kernels(python):
    """The seed guard goes at the first seeded draw, and replacements of the same op stay in place and work."""
    out = python(
        "import torch, samebits\n"
        "from samebits.determinism import _all_replacements as catalogue\n"
        "from samebits.determinism._replacement import Replacement\n"
        "calls = []\n"
        "def make(kernel):\n"
        "    return lambda *a, **k: (calls.append(1), kernel(*a, **k))[1]\n"
        "catalogue.REPLACEMENTS = (Replacement('aten::uniform_', make, 'counts'),)\n"
        "samebits.enable_op_determinism()\n"
        "torch.manual_seed(1)\n"
        "a, b = torch.rand(3), torch.rand(3)\n"
        "samebits.enable_op_determinism(False)\n"
        "torch.manual_seed(1)\n"
        "print(len(calls), torch.equal(a, torch.rand(3)), torch.equal(b, torch.rand(3)))\n"
    ).stdout
    assert out.split() == ["2", "True", "True"]


@pytest.mark.slow
def test_turning_on_again_after_unseeded_draws_is_a_warning(python):
    """Leaving a block inside which unseeded numbers were drawn warns as enabling does: it would hide them."""
    done = python(
        "import torch, samebits\n"
        "samebits.enable_op_determinism()\n"
        "with samebits.enable_op_determinism(False):\n"
        "    torch.rand(3)\n"
        "print(samebits.op_determinism_enabled())\n"
        "try:\n"
        "    torch.rand(3)\n"
        "except samebits.errors.UnseededError:\n"
        "    print('refused')\n"
    )
    assert done.stdout.split() == ["True", "refused"]
    assert done.stderr.count("UnseededWarning") == 1


TIME = """
import time
begun = time.thread_time()
import torch
importing, took = time.thread_time() - begun, []
import samebits
samebits.op_determinism_enabled()  # which imports the switch
for again in range(5):
    begun = time.thread_time()
    samebits.enable_op_determinism()
    took.append(time.thread_time() - begun)
    samebits.enable_op_determinism(False)
print(importing * 1000, took[0] * 1000, min(took) * 1000)
"""


@pytest.mark.slow
def test_enabling_is_nothing_beside_the_import_of_torch(python):
    """Turning the switch on takes less than a fifth of the CPU time of `import torch`, the first time too."""
    importing, first, again = map(float, python(TIME).stdout.split())
    assert first < importing / 5 and again < importing / 5, (importing, first, again)
