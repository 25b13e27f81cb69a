"""The switch: `enable_op_determinism` sets torch's flags and our overrides, and restores the state before.

After TensorFlow's `tf.config.experimental.enable_op_determinism` (RFC 346).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType

import torch

from samebits._context import ACROSS, Across, OnUnimplemented, OpDeterminismSettings, process
from samebits._inspect import user_code
from samebits._inspect.patching import Patches
from samebits._inspect.user_call import WrongCall, explain_wrong_calls
from samebits.determinism import _all_replacements as replacements
from samebits.determinism import _compile, _ops
from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism import _reviewed_schemas as reviewed_schemas
from samebits.determinism._compile import inductor_flag
from samebits.determinism._dispatcher import Kernel, KernelOverrides
from samebits.determinism._guards import (
    asynchronous_training,
    conflicting_settings,
    custom_ops,
    denormals,
    fake_tensors,
    loader_order,
    numpy_draws,
    python_draws,
    refused_ops,
    torch_generators,
)
from samebits.determinism._guards.torch_draws import SeedGuard
from samebits.determinism._guards.uninitialized_memory import without_fill
from samebits.determinism._replacement import Policy, Replacement
from samebits.errors import InvalidArgumentError

# Calls of `enable_op_determinism` with arguments that it does not have: the error has the line to type.


_MEANT = (
    (
        r"machine|cpus?\b|hardware|arch|vendor",
        "the same bits on every x86-64 CPU with AVX2 and FMA",
        'samebits.enable_op_determinism(across="machines")',
    ),
    (
        r"thread|core|omp",
        "the same bits on any number of threads",
        'samebits.enable_op_determinism(across="threads")',
    ),
    (r"warn", "a warning in place of an error", 'samebits.enable_op_determinism(on_unimplemented="warn")'),
    (r"seed", "a seed", "samebits.set_random_seed(seed)"),
)
"""A word in an argument, the effect that was meant, and the line to type."""


def _explain(call: WrongCall) -> str:
    """Returns the message for a call that does not fit the signature."""
    given = ", ".join(
        [*map(repr, call.args), *(f"{name}={value!r:.40}" for name, value in call.named.items())]
    )
    problem = (
        f"there is no argument {', '.join(call.unknown)}"
        if call.unknown
        else "each argument after the first needs its name"
    )
    asked = {name: call.named[name] for name in call.unknown if call.named[name] is not False}
    words = " ".join(f"{name} {value}" for name, value in asked.items()).lower()
    for pattern, effect, line in _MEANT:
        if re.search(pattern, words):
            return f"enable_op_determinism({given}): {problem}. For {effect} type\n    {line}"
    return (
        f"enable_op_determinism({given}): {problem}. "
        "Its arguments are enabled, across and on_unimplemented:\n"
        '    samebits.enable_op_determinism(across="threads")'
    )


class _Switch:
    """On with some settings, or off; a change undoes everything first; an error restores the state before."""

    def __init__(self) -> None:
        self.guard = SeedGuard()
        self.guards = (self.guard, numpy_draws.NumpyGuard(), python_draws.PythonGuard())
        self._undo = ExitStack()

    def change(self, settings: OpDeterminismSettings | None) -> None:
        """Turns the switch on with settings, or off for None. An error leaves the switch as it was."""
        before = process.op_determinism
        if settings == before:
            return
        self._turn_off()
        try:
            if settings is not None:
                self._turn_on(settings)
        except BaseException:
            if before is not None:
                self._turn_on(before)
            raise

    def _turn_on(self, settings: OpDeterminismSettings) -> None:
        self.guard.check()
        conflicting_settings.refuse_environment()
        conflicting_settings.warn_of_late_branch()
        if settings.across == "machines":
            _ops.coverage.check()
        with ExitStack() as undo:
            undo.enter_context(_set_flags())
            if settings.across != "runs":
                undo.enter_context(_ops.recurrent.composed())
                undo.enter_context(_ops.attention.one_path())
            undo.enter_context(inductor_flag.deterministic())
            conflicting_settings.refuse_late_workspace()
            undo.enter_context(_install_kernels(settings))
            undo.enter_context(_patch_functions(settings))
            undo.enter_context(torch_generators.watch_generators())
            undo.callback(_compile.leave)
            _compile.enter(settings.across)
            for guard in self.guards:
                undo.callback(guard.remove)
                guard.install()
            process.op_determinism = settings
            self._undo = undo.pop_all()

    def _turn_off(self) -> None:
        process.op_determinism = None
        self._undo.close()


_switch = _Switch()


class OpDeterminism:
    """The result of `enable_op_determinism`: leaving its `with` block restores the state before the call.

    Example:
        >>> switch = samebits.enable_op_determinism()
        >>> with switch:
        ...     samebits.op_determinism_enabled()
        True
        >>> samebits.op_determinism_enabled()
        False
    """

    def __init__(self, before: OpDeterminismSettings | None) -> None:
        self._before = before

    def __enter__(self) -> None:
        """Does nothing: the call has set the switch already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _switch.change(self._before)


@explain_wrong_calls(_explain)
def enable_op_determinism(
    enabled: bool = True, *, across: Across = "runs", on_unimplemented: OnUnimplemented = "raise"
) -> OpDeterminism:
    """Makes torch's ops reproducible, or raises where they cannot be; `False` restores the state before.

    Takes effect at once; earlier calls are not judged. As a context manager (`with enable_op_determinism():`)
    it is undone at the end of the block; blocks nest, the inner one's arguments hold inside it. It sets:
    deterministic algorithms (strict; memory that nobody wrote is filled, as torch does), cuDNN deterministic
    and without benchmark, the cuBLAS workspace, Inductor's deterministic mode, kernels of our own where
    torch's vary (`samebits ops`), and a guard in front of every op that draws from a default generator.
    Turning it off leaves no trace.

    Asynchronous training, whose updates arrive in no fixed order, raises `UnimplementedError` when it is set
    up: `torch.distributed.rpc`, `DistributedOptimizer`, parameters in memory that processes share (Hogwild).
    Two threads that train the same parameters are warned of. A torch loader with `in_order=False` keeps the
    order, with a warning.

    Seeds are not set: call `samebits.set_random_seed` as well. A draw without a seed raises `UnseededError`,
    from torch's, NumPy's or Python's generators; earlier draws are a warning (`UnseededWarning`).

    Args:
        enabled: on or off.
        across: where the bits are the same, in three steps that each include those before it.
            "runs": in every run on one machine.
            "threads": for any number of intra-op threads, too, by the kernels of "machines". What they do not
            cover runs on one thread, unless torch's kernel is known to have the same bits.
            "machines": on every x86-64 CPU with AVX2 and FMA, of any vendor, and for every batch that a row
            is in, too. An op that is not covered raises `UnimplementedError`, as do torch.compile
            and TorchScript (docs/how-to/every-cpu.md).
        on_unimplemented: the effect of an op without a deterministic implementation: "raise"
            `UnimplementedError`, or "warn" once per op and run. The environment fingerprint and the record
            have the setting.

    Raises:
        ConflictError: environment variables contradict the switch, or the call takes back what `samebits run
            --across` promised.
        InvalidArgumentError: an argument is of another kind, or unknown.

    Example:
        >>> import numpy
        >>> samebits.set_random_seed(1)
        >>> with samebits.enable_op_determinism():
        ...     numpy.random.default_rng()
        Traceback (most recent call last):
            ...
        samebits.errors.UnseededError: numpy.random: default_rng(), ..., without a seed, ...
    """
    if not isinstance(enabled, bool):
        raise InvalidArgumentError(
            f"enable_op_determinism(enabled={enabled!r}): `enabled` must be True or False. Seeds are set by "
            "samebits.set_random_seed(seed)."
        )
    if on_unimplemented not in {"raise", "warn"}:
        raise InvalidArgumentError(
            f"enable_op_determinism(on_unimplemented={on_unimplemented!r}): it is 'raise' or 'warn'."
        )
    if across not in ACROSS:
        raise InvalidArgumentError(
            f"enable_op_determinism(across={across!r}): it is 'runs', 'threads' or 'machines'."
        )
    before = process.op_determinism
    settings = OpDeterminismSettings(across, on_unimplemented) if enabled else None
    _refuse_less(settings)
    _switch.change(settings)
    return OpDeterminism(before)


def _refuse_less(settings: OpDeterminismSettings | None) -> None:
    """Raises an error where a program takes back what the command that started it promised."""
    asked, now = process.asked_op_determinism, settings or OpDeterminismSettings()
    if asked is None or ACROSS.index(asked.across) <= ACROSS.index(now.across):
        return
    given = "False"
    if settings is not None:
        given = "" if now.across == "runs" else f'across="{now.across}"'
    raise conflicting_settings.WeakerThanAskedError(
        f"{user_code.calling_line()}: enable_op_determinism({given}) takes back --across {asked.across}, "
        "with which the program was started. "
        f'Write enable_op_determinism(across="{asked.across}") there, or remove that call.'
    )


def op_determinism_enabled() -> bool:
    """Returns True if the switch is on.

    Example:
        >>> with samebits.enable_op_determinism():
        ...     samebits.op_determinism_enabled()
        True
        >>> samebits.op_determinism_enabled()
        False
    """
    return process.op_determinism is not None


@contextmanager
def _set_flags() -> Iterator[None]:
    """Sets flags of torch, and the variable that cuBLAS reads at its first product."""
    torchs = torch._C
    algorithms = torchs._get_deterministic_algorithms(), torchs._get_deterministic_algorithms_warn_only()
    cudnn = torchs._get_cudnn_deterministic(), torchs._get_cudnn_benchmark()
    workspace = os.environ.get(conflicting_settings.CUBLAS_VARIABLE)
    torchs._set_deterministic_algorithms(True, warn_only=False)
    torchs._set_cudnn_deterministic(True)
    torchs._set_cudnn_benchmark(False)
    os.environ[conflicting_settings.CUBLAS_VARIABLE] = workspace or ":4096:8"
    try:
        yield
    finally:
        torchs._set_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        torchs._set_cudnn_deterministic(cudnn[0])
        torchs._set_cudnn_benchmark(cudnn[1])
        if workspace is None:
            os.environ.pop(conflicting_settings.CUBLAS_VARIABLE, None)
        else:
            os.environ[conflicting_settings.CUBLAS_VARIABLE] = workspace


@contextmanager
def _install_kernels(settings: OpDeterminismSettings) -> Iterator[None]:
    """Installs our kernels, and errors with the cure for ops that torch or the mode refuses."""
    overrides = KernelOverrides()
    warn = settings.on_unimplemented == "warn"
    policy = _policy(settings)
    try:
        ours = reviewed_schemas.installable([*policy.kernels_to_install(), *_for_cuda()])
        for it in ours:
            # inference mode passes autograd by
            for key in ("AutogradCPU", "CPU") if it.device == "AutogradCPU" else (it.device,):
                overrides.put(it.op, key, partial(_make, policy, it))
        policy.put_rest(overrides, ours)
        refused_ops.refuse(overrides, ours, warn=warn)
        fake_tensors.refuse_meta_operands(overrides)
        yield
    finally:
        overrides.remove()


def _policy(settings: OpDeterminismSettings) -> Policy:
    """Returns the mode's: calls that none of our kernels takes raise, run on one thread, or are torch's."""
    if settings.across == "machines":
        return _ops.refusal.policy(warn=settings.on_unimplemented == "warn")
    return _ops.one_thread.POLICY if settings.across == "threads" else _RUNS


_RUNS = Policy(
    kernels_to_install=lambda: (it for it in replacements.REPLACEMENTS if not it.only_threads),
    otherwise=lambda _op, _kernel: None,
    put_rest=lambda _overrides, _ours: None,
)
"""The policy of `across="runs"`."""


def _for_cuda() -> Iterable[Replacement]:
    return cuda_loading.installable() if torch.backends.cuda.is_built() else ()


def _make(policy: Policy, it: Replacement, kernel: Kernel) -> Kernel:
    return without_fill(it.make(kernel), policy.otherwise(it.op, kernel))


@contextmanager
def _patch_functions(settings: OpDeterminismSettings) -> Iterator[None]:
    """Replaces Python functions that would undo the switch, or that begin something nondeterministic."""
    patches = Patches()
    try:
        numpy_draws.watch(patches)
        python_draws.watch(patches)
        conflicting_settings.watch(patches)
        denormals.watch(patches)
        asynchronous_training.refuse(patches)
        loader_order.watch(patches)
        custom_ops.watch(patches)
        fake_tensors.watch(patches, warn=settings.on_unimplemented == "warn")
        yield
    finally:
        patches.undo()
        asynchronous_training.unwatch()
        custom_ops.unwatch()
