"""The effects of `enable_op_determinism` on compiled code, and their removal."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch.compiler.config

from samebits._byte_digest import of_bytes
from samebits._context import Across
from samebits._inspect.patching import Patches
from samebits.determinism._compile import inductor, torchscript, triton_autotuning, unseeded_draws

_patches = Patches()
_profiled: list[bool] = []


def enter(across: Across) -> None:
    """Makes compiled code follow the switch: older code is compiled again, or refused when called.

    Imports neither Dynamo nor Inductor: they are patched when they are imported. With `across="threads"`,
    code that Inductor generates for the CPU has the same bits at any thread count. With `across="machines"`
    code that Inductor or TorchScript generates is refused.
    """
    mode = f"samebits-{_sources()}-{across}"
    config = torch.compiler.config
    # The official part of the key of every compile cache on disk: code of another mode is never loaded.
    _patches.force(config, "cache_key_tag", f"{config.cache_key_tag}{mode}")
    _patches.when_imported("torch._dynamo.config", lambda module: inductor.pin_shapes(module, _patches))
    _patches.when_imported(
        "torch._inductor.compile_fx",
        lambda module: inductor.patch(module, _patches, mode, across),
    )
    _patches.when_imported(
        "triton.runtime.autotuner", lambda module: triton_autotuning.pin_first_configuration(module, _patches)
    )
    unseeded_draws.watch(_patches)
    if across == "machines":
        torchscript.refuse(_patches)
    _profiled.append(torchscript.pin())
    _forget_compiled()


def leave() -> None:
    """Undoes `enter` exactly; code that was compiled under the switch is compiled again when it is called."""
    _patches.undo()
    if _profiled:
        torchscript.unpin(_profiled.pop())
        _forget_compiled()


def _forget_compiled() -> None:
    """Drops compiled code: Dynamo guards on torch's own determinism flag only, not on our mode."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "reset"):
        dynamo.reset()


@cache
def _sources() -> str:
    """Returns a digest of everything in this package that compiled code may depend on."""
    folder = Path(__file__).parent.parent
    files = sorted([*folder.rglob("*.py"), *(folder.parent / "_native").rglob("*.py")])
    return of_bytes(*(file.read_bytes() for file in files)).split(":")[1][:16]
