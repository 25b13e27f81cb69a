"""Settings that contradict op determinism: refused before anything is computed, never silent afterwards."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.backends import ContextProp

from samebits._context import process
from samebits._inspect.patching import Patches, stand_in
from samebits._inspect.user_code import calling_line
from samebits.determinism._compile import inductor_flag
from samebits.determinism._environment import products_follow_addresses
from samebits.determinism._guards import custom_ops, torch_generators
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictError, ConflictWarning

CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_VALUES = (":4096:8", ":16:8")
"""The values with which torch lets cuBLAS run under its flag (aten/src/ATen/Context.cpp)."""
_BLOCK = "To leave determinism for some lines: `with samebits.enable_op_determinism(False):`."


class WeakerThanAskedError(ConflictError):
    """A program takes back what the command that started it promised; `samebits run` ends with its line."""


def refuse_environment() -> None:
    """Raises `ConflictError` when environment variables contradict the switch, before it is turned on."""
    inductor_flag.refuse_contradiction()
    value = os.environ.get(CUBLAS_VARIABLE)
    if value and value not in _CUBLAS_VALUES:
        raise ConflictError(
            f"enable_op_determinism(): with {CUBLAS_VARIABLE}={value} in the environment cuBLAS is not "
            f"deterministic. Unset it, or set it to {' or '.join(_CUBLAS_VALUES)}."
        )


def warn_of_late_branch() -> None:
    """Warns if MKL computed before samebits was imported, where its small products follow addresses."""
    if products_follow_addresses():
        warn_once(
            "MKL_CBWR",
            "enable_op_determinism(): torch computed a product before samebits was imported. On this CPU "
            "MKL's small products then depend on where in memory an array of NumPy begins. Import samebits "
            "before the first product, or start the program with MKL_CBWR=AUTO in its environment.",
            ConflictWarning,
        )


def refuse_late_workspace() -> None:
    """Raises `ConflictError` when cuBLAS was used before its variable was set. (No GPU has run this yet.)

    torch reads the variable at its first matrix product on a GPU, and then refuses all of them under its
    flag. So one product, after flag and variable are set, shows it; nothing is done where CUDA was not used
    before.
    """
    if not torch.cuda.is_initialized():
        return
    try:
        torch.ones(1, 1, device="cuda").mm(torch.ones(1, 1, device="cuda"))
    except RuntimeError as error:
        raise ConflictError(
            f"enable_op_determinism(): cuBLAS was used before {CUBLAS_VARIABLE} was set, so that its "
            f"products cannot be made deterministic any more. Set {CUBLAS_VARIABLE}=:4096:8 in the "
            "environment of the program, or call enable_op_determinism() before the first product on a GPU."
        ) from error


def watch(patches: Patches) -> None:
    """Replaces the functions by which a program, or a library it uses, could undo the switch."""
    for name, call in (
        ("use_deterministic_algorithms", _use_deterministic_algorithms),
        ("set_deterministic_debug_mode", _set_deterministic_debug_mode),
    ):
        patches.put(torch, name, stand_in(getattr(torch, name), call))
    cudnn = type(torch.backends.cudnn)
    for name, kept in (("benchmark", False), ("deterministic", True)):
        patches.put(cudnn, name, _kept_flag(f"torch.backends.cudnn.{name}", vars(cudnn)[name], kept))


def check() -> None:
    """Raises or warns when something has undone the switch; called between two steps (0.5 us).

    Raises:
        ConflictError: torch's flag is off or torch's warn_only is on, so that ops may have varied already.
    """
    if process.op_determinism is None:
        _check_without_switch()
        return
    torchs = torch._C
    if not torchs._get_deterministic_algorithms() or torchs._get_deterministic_algorithms_warn_only():
        raise ConflictError(
            "op determinism is on, but torch's own flag was turned off, or to warn_only, without a call of "
            "samebits (torch._C._set_deterministic_algorithms): what ran since then may differ in the next "
            f"run. Call samebits.enable_op_determinism(False) where it is meant. {_BLOCK}"
        )
    if torchs._get_cudnn_benchmark() or not torchs._get_cudnn_deterministic():
        torchs._set_cudnn_benchmark(False)
        torchs._set_cudnn_deterministic(True)
        _warn("cudnn", "cuDNN's benchmark or deterministic flag was changed and is restored")
    if inductor_flag.contradicted():
        _warn_of_inductor("torch._inductor.config.deterministic is False while op determinism is on")
    custom_ops.watch_new_ops()
    torch_generators.check()


def _check_without_switch() -> None:
    if torch._C._get_deterministic_algorithms() and inductor_flag.contradicted():
        _warn_of_inductor(
            "torch's deterministic algorithms are on, but Inductor is not deterministic: "
            "torch.set_deterministic_debug_mode leaves it as it is"
        )


def _warn_of_inductor(text: str) -> None:
    cure = (
        "compiled code may differ in the next run. Call samebits.enable_op_determinism() before anything is "
        "compiled"
    )
    _warn("inductor", f"{text}: {cure}")


def _use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Replaces torch's function: setting the current state is free, a weaker one raises."""
    if not mode or (warn_only and not _warns()):
        _refuse_call(f"torch.use_deterministic_algorithms({mode}{', warn_only=True' * warn_only})")


def _set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Replaces torch's function in the same way."""
    if debug_mode not in {2, "error"} and not (debug_mode in {1, "warn"} and _warns()):
        _refuse_call(f"torch.set_deterministic_debug_mode({debug_mode!r})")


def _refuse_call(call: str) -> None:
    raise ConflictError(
        f"{call} at {calling_line()}: op determinism is on (samebits.enable_op_determinism), and this would "
        "undo it. Remove the call; ops without a deterministic implementation can warn instead of raise: "
        f"enable_op_determinism(on_unimplemented='warn'). {_BLOCK}"
    )


def _warns() -> bool:
    settings = process.op_determinism
    return settings is not None and settings.on_unimplemented == "warn"


def _kept_flag(name: str, flag: Any, required: bool) -> Any:
    def assign(value: bool) -> None:
        if value is not required:
            _warn(
                name,
                f"{name} = {value} at {calling_line()} is not followed while op determinism is on: it stays "
                f"{required}",
            )

    return ContextProp(flag.getter, assign)


def _warn(subject: str, text: str) -> None:
    warn_once(subject, f"{text}.", ConflictWarning)
