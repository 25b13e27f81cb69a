import os
import threading
import timeit
import warnings
from contextvars import ContextVar

import pytest
import torch

import samebits
from samebits._context import process
from samebits.determinism._compile import inductor_flag
from samebits.determinism._guards import conflicting_settings
from samebits.determinism.table._overload_facts import version_numbers
from samebits.errors import ConflictError, ConflictWarning


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    samebits.set_random_seed(0)
    monkeypatch.setattr(process, "notices", {})


def caught_from(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [w for w in caught if w.category is ConflictWarning]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCHINDUCTOR_DETERMINISTIC", "0"),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:2"),
    ],
)
def test_a_contradicting_environment_variable_is_refused(monkeypatch, variable, value):
    """A variable that would undo the switch raises at enable, names itself and the cure, and nothing is changed."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConflictError, match=f"{variable}={value}.*Unset it"):
        samebits.enable_op_determinism()
    assert not torch.are_deterministic_algorithms_enabled() and os.environ[variable] == value


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCHINDUCTOR_DETERMINISTIC", "1"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
        ("CUBLAS_WORKSPACE_CONFIG", ""),
    ],
)
def test_an_agreeing_environment_variable_is_kept(monkeypatch, variable, value):
    """Negative control: what agrees with the switch, or is empty, is not refused, and comes back afterwards."""
    monkeypatch.setenv(variable, value)
    with samebits.enable_op_determinism():
        assert os.environ[variable] in {value, ":4096:8"}
    assert os.environ[variable] == value


UNDOING = [
    lambda: torch.use_deterministic_algorithms(False),
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    lambda: torch.set_deterministic_debug_mode(0),
    lambda: torch.set_deterministic_debug_mode("default"),
    lambda: torch.set_deterministic_debug_mode("warn"),
]


@pytest.mark.parametrize("call", UNDOING)
def test_undoing_the_switch_behind_its_back_raises(call):
    """torch's own functions that would turn determinism off, or to warnings, raise at the call and change nothing."""
    with samebits.enable_op_determinism():
        with pytest.raises(
            ConflictError, match=rf"{__file__}:{call.__code__.co_firstlineno}.*enable_op_determinism"
        ):
            call()
        assert torch.get_deterministic_debug_mode() == 2


def test_without_the_switch_torchs_functions_are_torchs():
    """Negative control: the same calls pass while the switch is off."""
    try:
        for call in UNDOING:
            call()
    finally:
        torch.use_deterministic_algorithms(False)


def test_asking_for_what_holds_already_passes():
    """use_deterministic_algorithms(True) and debug mode 'error' are no conflict; with 'warn', warn_only is none either."""
    with samebits.enable_op_determinism():
        torch.use_deterministic_algorithms(True)
        torch.set_deterministic_debug_mode("error")
    with samebits.enable_op_determinism(on_unimplemented="warn"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_deterministic_debug_mode(1)
        assert torch.get_deterministic_debug_mode() == 2  # strict all the same: only refused ops warn


def test_cudnn_flags_stay_and_the_assignment_warns_once():
    """cudnn.benchmark = True under the switch is not followed: one warning at the user's line."""

    def assign():
        for _ in range(2):
            torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = False

    with samebits.enable_op_determinism():
        own = caught_from(assign)
        assert not torch.backends.cudnn.benchmark and torch.backends.cudnn.deterministic
    assert [w.lineno - assign.__code__.co_firstlineno for w in own] == [2, 3]
    torch.backends.cudnn.benchmark = True
    assert torch.backends.cudnn.benchmark  # negative control: torch's own again
    torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("arguments", [(False,), (True, True)])
def test_a_step_boundary_finds_torchs_flag_changed_in_c(arguments):
    """What no Python function sees is found between two steps of a run, where it raises."""
    samebits.enable_op_determinism()
    with samebits.Run(None) as run, pytest.raises(ConflictError, match="without a call of samebits"):
        for step, _ in run.steps([1, 2, 3]):
            if step.number == 1:
                torch._C._set_deterministic_algorithms(arguments[0], warn_only=len(arguments) > 1)
    assert step.number == 1


def test_a_step_boundary_puts_cudnn_flags_back_and_warns():
    """cuDNN's flags changed below Python are put back at the next boundary, with one warning."""
    with samebits.enable_op_determinism():
        torch._C._set_cudnn_benchmark(True)
        own = caught_from(lambda: [conflicting_settings.check() for _ in range(3)])
        assert not torch.backends.cudnn.benchmark
    assert ["cuDNN" in str(w.message) for w in own] == [True]


def test_the_check_finds_nothing_in_peace():
    """Negative control: with nothing changed, the check at a step boundary neither raises nor warns."""
    with samebits.enable_op_determinism():
        assert caught_from(conflicting_settings.check) == []
    assert caught_from(conflicting_settings.check) == []


def test_the_check_costs_next_to_nothing():
    """The check between two steps takes less than 2 us (0.5 measured on a quiet machine)."""
    with samebits.enable_op_determinism():
        assert min(timeit.repeat(conflicting_settings.check, number=2000, repeat=20)) / 2000 < 2e-6


def in_another_thread(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_inductor_imported_before_is_deterministic_in_every_thread():
    """Inductor's flag, imported before the switch, holds in other threads too, where backwards are compiled."""
    import torch._inductor.config as config

    assert not config.deterministic
    with samebits.enable_op_determinism():
        assert config.deterministic and in_another_thread(lambda: config.deterministic)
    assert not config.deterministic and not in_another_thread(lambda: config.deterministic)


def test_setting_inductors_flag_alone_does_not_reach_other_threads():
    """Negative control: `config.deterministic = True`, as torch itself sets it, holds in one thread only, but in torch 2.11."""
    import torch._inductor.config as config

    config.deterministic = True
    try:
        held = isinstance(config._config["deterministic"].user_override, ContextVar)
        assert held is (version_numbers(torch.__version__) >= (2, 13))
        assert in_another_thread(lambda: config.deterministic) is not held
    finally:
        config.deterministic = False


def test_inductor_made_nondeterministic_under_the_switch_is_found():
    """`torch._inductor.config.deterministic = False` under the switch warns at the next step boundary."""
    import torch._inductor.config as config

    with samebits.enable_op_determinism():
        config.deterministic = False
        own = caught_from(conflicting_settings.check)
    assert len(own) == 1 and "_inductor.config.deterministic is False" in str(own[0].message)


def test_the_debug_mode_alone_leaves_inductor_nondeterministic():
    """set_deterministic_debug_mode instead of the switch: said at a run's step boundary, once Inductor is imported."""
    import torch._inductor.config as config

    torch.set_deterministic_debug_mode("error")
    try:
        assert not config.deterministic and inductor_flag.contradicted()
        own = caught_from(lambda: list(samebits.Run(None).__enter__().steps([1, 2])))
    finally:
        torch.set_deterministic_debug_mode("default")
    assert len(own) == 1 and "set_deterministic_debug_mode leaves it" in str(own[0].message)


@pytest.mark.slow
def test_inductor_imported_later_reads_the_switch(python):
    """Enabling imports no compiler; imported later, Inductor is deterministic in all threads; off, it is not any more."""
    out = python(
        "import samebits, torch, sys, threading\n"
        "samebits.set_random_seed(0)\n"
        "samebits.enable_op_determinism()\n"
        "print('torch._inductor' in sys.modules, 'torch._dynamo' in sys.modules)\n"
        "torch.use_deterministic_algorithms(True)\n"
        "print('torch._inductor' in sys.modules)\n"
        "import torch._inductor.config as config\n"
        "show = lambda: print(config.deterministic)\n"
        "def everywhere():\n"
        "    show(); other = threading.Thread(target=show); other.start(); other.join()\n"
        "everywhere()\n"
        "samebits.enable_op_determinism(False)\n"
        "everywhere()\n"
    ).stdout
    assert out.split() == ["False", "False", "False", "True", "True", "False", "False"]
