import os

import pytest
import torch
import torch.utils.deterministic as memory_fill

import samebits
from samebits.determinism.table._overload_facts import version_numbers
from samebits.errors import InvalidArgumentError, UnseededError


def settings():
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": memory_fill.fill_uninitialized_memory,
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "environment": dict(os.environ),
        "seed": torch.seed,
        "kernel": torch.ops.aten.linalg_lstsq.default.has_kernel_for_dispatch_key("CPU"),
    }


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(0)


def test_on_sets_everything_and_off_restores_it():
    """The switch changes flags, environment and overrides, and `False` puts back exactly what was there."""
    before = settings()
    samebits.enable_op_determinism()
    assert samebits.op_determinism_enabled()
    now = settings()
    assert now["algorithms"] and not now["warn_only"] and now["fill"]
    assert now["cudnn"] == (True, False)
    assert now["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert now["environment"]["TORCHINDUCTOR_DETERMINISTIC"] == "1"
    assert now != before
    samebits.enable_op_determinism(False)
    assert not samebits.op_determinism_enabled()
    assert settings() == before


def test_off_restores_settings_that_a_user_had_made(monkeypatch):
    """What the user had set himself (warn_only, benchmark, workspace) is what comes back, not torch's defaults."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    try:
        before = settings()
        with samebits.enable_op_determinism():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # cuBLAS accepts this value, too
            assert torch._inductor.config.deterministic
        assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


@pytest.mark.slow
def test_inductor_imported_under_the_switch_is_put_back(python):
    """Inductor imported while the switch is on is deterministic, and is not any more after the switch is off."""
    python(
        "import samebits, torch, sys\n"
        "samebits.set_random_seed(0)\n"
        "samebits.enable_op_determinism()\n"
        "assert 'torch._inductor.config' not in sys.modules\n"
        "import torch._inductor.config as config\n"
        "assert config.deterministic\n"
        "samebits.enable_op_determinism(False)\n"
        "assert not config.deterministic\n"
    )


def test_context_managers_nest():
    """Leaving a block puts back the state before its call, on inside off and off inside on."""
    with samebits.enable_op_determinism():
        with samebits.enable_op_determinism(False):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        with samebits.enable_op_determinism():
            pass
        assert samebits.op_determinism_enabled()
    assert not samebits.op_determinism_enabled()


def test_the_block_is_undone_after_an_exception():
    """An exception inside the block leaves nothing behind."""
    before = settings()
    with pytest.raises(KeyError), samebits.enable_op_determinism():
        raise KeyError
    assert settings() == before


def test_a_seed_passed_as_enabled_is_refused():
    """`enable_op_determinism(42)` is a mistake that the message explains, and nothing is changed."""
    before = settings()
    with pytest.raises(InvalidArgumentError, match="set_random_seed"):
        samebits.enable_op_determinism(42)
    assert settings() == before


LSTSQ = """
import sys, torch, samebits, hashlib
from samebits.determinism._dispatcher import KernelOverrides as Overrides
samebits.set_random_seed(0)
a, b = torch.randn(64, 8), torch.randn(64, 3)
if sys.argv[1] == "on":
    samebits.enable_op_determinism()
else:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
seen = set()
for i in range(300):
    junk = [torch.full((n,), float(i) * 7 + n) for n in (2, 4, 8, 16, 32)]  # dirties the allocator's free blocks
    del junk
    seen.add(torch.linalg.lstsq(a, b).solution.numpy().tobytes())
print(len(seen))
"""


@pytest.mark.slow
def test_lstsq_is_reproducible_under_the_switch(python):
    """linalg.lstsq's default driver reads unwritten memory; under the switch 300 calls give one result."""
    assert int(python(LSTSQ, "on").stdout) == 1


def test_lstsq_varies_without_memory_fill(python):
    """Negative control: with torch's own switch and fill off, lstsq gives more than one result; torch 2.15 writes what it reads."""
    results = int(python(LSTSQ, "off").stdout)
    assert results == 1 if version_numbers(torch.__version__) >= (2, 15) else results > 1


EMPTY = """
import sys, torch, samebits
torch.utils.deterministic.fill_uninitialized_memory = sys.argv[1] != "off"
with samebits.enable_op_determinism():
    if sys.argv[1] == "off later":
        torch.utils.deterministic.fill_uninitialized_memory = False
    found = set()
    for turn in range(20):
        x = torch.full((50_000,), float(turn))
        del x
        made = torch.empty(50_000), torch.ones(1).new_empty(50_000), torch.ones(3).resize_(50_000), torch.mm(torch.eye(300), torch.eye(300))
        found.add(b"".join(one.numpy().tobytes() for one in made))
        del made
    print(len(found), torch.utils.deterministic.fill_uninitialized_memory)
"""


@pytest.mark.slow
def test_memory_that_nobody_wrote_has_the_same_bits(python):
    """torch.empty, new_empty and resize_ repeat their bits 20 times; a user may turn that off before the switch, or after it."""
    assert python(EMPTY, "on").stdout == "1 True\n"
    for word in ("off", "off later"):  # the negative control, too
        count, kept = python(EMPTY, word).stdout.split()
        assert int(count) > 1 and kept == "False"


def test_torch_seed_is_refused_under_the_switch():
    """torch.seed() takes its seed from the operating system, so it raises while the switch is on."""
    with samebits.enable_op_determinism(), pytest.raises(UnseededError, match="set_random_seed"):
        torch.seed()
    assert isinstance(torch.seed(), int)
