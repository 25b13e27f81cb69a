"""The environment of a run, saved in its commits and compared at a resume.

What may change is accepted by name: `Run(allow_changes=["torch", "cpu"])`. A changed script is warned of and recorded;
the number of threads is restored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits import _digest as digest
from samebits._context import process
from samebits._inspect import user_code
from samebits.checkpoint._manifest import Manifest
from samebits.determinism import environment_fingerprint
from samebits.determinism._environment import differences
from samebits.errors import InvalidArgumentError, RunMismatchError

_NAMES = {
    "packages.samebits": "samebits",
    "packages.torch": "torch",
    "packages.numpy": "numpy",
    "packages.numba": "numba",
    "packages.llvmlite": "numba",
    "python": "python",
    "platform": "platform",
    "cpu": "cpu",
    "cpu_capability": "cpu",
    "mkldnn": "torch",
    "gpus": "gpu",
    "cuda": "gpu",
    "threads": "threads",
    "op_determinism": "flags",
    "flags": "flags",
    "scripts": "script",
}
"""The name of each entry of the fingerprint in `allow_changes`; other entries do not affect bits."""

KNOWN = tuple(dict.fromkeys(_NAMES.values()))
_PLAIN = (bool, int, float, str, type(None))
_DERIVED = ("params", "initial_lr", "base_lrs", "_last_lr")
_TUNED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


@dataclass
class Environment:
    """The environment that the commits of one process record."""

    fingerprint: dict[str, Any]
    scripts: list[dict[str, Any]]
    """The script and the user's modules that it had imported, by digest, each with its first step."""
    hyperparameters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The hyperparameters with which the program created each optimizer, by parameter group, and each scheduler."""

    @classmethod
    def current(cls, objects: Mapping[str, Any], world_size: int) -> Environment:
        """Returns the environment of this process, on entering a run."""
        now = {**environment_fingerprint(), "world_size": world_size}
        made = {
            name: _chosen_hyperparameters(obj) for name, obj in objects.items() if isinstance(obj, _TUNED)
        }
        return cls(now, [{"step": 0, "files": script_digests()}], made)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for a commit."""
        return {**self.fingerprint, "scripts": self.scripts, "optimizers": self.hyperparameters}

    def resume(self, manifest: Manifest, where: str, allowed: Collection[str]) -> None:
        """Resumes from `manifest`: restores the threads, warns of another script and of hyperparameters that have no effect.

        Raises `RunMismatchError` when the number of threads matters and cannot be restored.
        """
        recorded = manifest.environment
        if "threads" not in allowed:
            self._restore_threads(recorded, where)
        self._record_script(manifest, where, warn="script" not in allowed)
        self._warn_of_hyperparameters(recorded.get("optimizers", {}), where)

    def check(self, manifest: Manifest, where: str, allowed: Collection[str]) -> None:
        """Raises `RunMismatchError` with the list of differences that are not allowed, each with its name."""
        recorded = manifest.environment
        left = {"threads"}
        if _on_every_machine(recorded) and _on_every_machine(self.fingerprint):
            left |= {"cpu", "cpu_capability"}
        before = {name: recorded.get(name) for name in self.fingerprint if name not in left}
        now = {name: value for name, value in self.fingerprint.items() if name not in left}
        changed = {line: _name_of(line) for line in differences(before, now)}
        refused = [
            f"{line} ({name!r})" for line, name in changed.items() if name is not None and name not in allowed
        ]
        if refused:
            names = sorted({name for name in changed.values() if name is not None} | set(allowed))
            raise RunMismatchError(
                f"{where} was made in another environment, where the same bits are not promised:\n  "
                + "\n  ".join(refused)
                + f"\nGo back to it, or accept what changed by name: Run(allow_changes={names})."
            )

    def _restore_threads(self, recorded: Mapping[str, Any], where: str) -> None:
        """Sets the number of intra-op threads that the run began with, where bits depend on it."""
        settings, threads, now = process.op_determinism, recorded.get("threads"), torch.get_num_threads()
        if (
            not isinstance(threads, int)
            or threads == now
            or (settings is not None and settings.thread_invariant)
        ):
            return
        torch.set_num_threads(threads)
        self.fingerprint["threads"] = got = torch.get_num_threads()
        if got != threads:
            raise RunMismatchError(
                f"{where} was made with {threads} intra-op threads, and here there are {got}. Allow as many, switch on "
                "enable_op_determinism(thread_invariant=True) from the first step on, or accept other bits: "
                "Run(allow_changes=['threads'])."
            )
        print(
            f"samebits: the run began with {threads} threads; set_num_threads({threads}) instead of {now} keeps the bits",
            file=sys.stderr,
        )

    def _record_script(self, manifest: Manifest, where: str, *, warn: bool) -> None:
        earlier = [*manifest.environment.get("scripts", [])]
        before, now = earlier[-1]["files"] if earlier else {}, self.scripts[-1]["files"]
        if not earlier or before == now:
            self.scripts = earlier or self.scripts
            return
        self.scripts = [*earlier, {"step": manifest.step, "files": now}]
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if warn and any(before.get(name) for name in changed):
            changes = [
                f"{name} {'changed' if name in before and name in now else 'is new' if name in now else 'is not used any more'}"
                for name in changed[:5]
            ]
            user_code.warn(
                f"{', '.join(changes)} since {where} was committed at step {manifest.step}: from here on the run "
                "is another program's, and will not end with the bits of either. The commits record it. "
                "Run(allow_changes=['script']) is silent about it.",
            )

    def _warn_of_hyperparameters(self, recorded: Mapping[str, list[dict[str, Any]]], where: str) -> None:
        """Warns where restored objects have the values of the commit, and the program created them with others."""
        lines = [
            f"{name}[{number}].{line}" if len(groups) > 1 else f"{name}.{line}"
            for name, groups in self.hyperparameters.items()
            for number, (before, now) in enumerate(zip(recorded.get(name, []), groups, strict=False))
            for line in differences(before, now)
        ]
        self.hyperparameters = {**self.hyperparameters, **recorded}
        if lines:
            user_code.warn(
                f"{where}: made with other values than the run began with: {'; '.join(lines)}. Those of the commit are used. To change "
                "them, set them in the loop, or begin another run from these weights.",
            )


def check_names(allowed: Any) -> frozenset[str]:
    """Returns the names in `allow_changes`. Raises `InvalidArgumentError` for one that is not known, and for "world_size"."""
    names = list(allowed) if isinstance(allowed, Collection) and not isinstance(allowed, str) else [allowed]
    if "world_size" in names:
        raise InvalidArgumentError(
            f"Run(allow_changes={allowed!r}): a run resumes with as many processes as it began with. A commit holds a state "
            "for each rank, and its position counts batches of one rank. Begin a new run directory with its weights "
            "(samebits.checkpoint.load_weights)."
        )
    unknown = [name for name in names if name not in KNOWN]
    if unknown or names == [allowed]:
        raise InvalidArgumentError(
            f"Run(allow_changes={allowed!r}): a list of what may differ from the commit's environment, of: {', '.join(KNOWN)}."
        )
    return frozenset(names)


def script_digests() -> dict[str, str]:
    """Returns the digests of the script's file, and of the user's modules beside or below it that are imported by now."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or user_code.is_library(main):
        return {}
    folder = os.path.dirname(os.path.realpath(main)) + os.sep
    modules = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    sources = [file for file in modules if os.path.isabs(file) and file.endswith(".py")]
    paths = {os.path.realpath(file) for file in [main, *sources] if user_code.owner_of_file(file) == "user"}
    return dict(sorted(_file_digest(path, folder) for path in paths if path.startswith(folder)))


def _file_digest(path: str, folder: str) -> tuple[str, str]:
    try:
        with open(path, "rb") as file:
            return os.path.relpath(path, folder), digest.of_bytes(file.read())
    except OSError:  # it was moved since
        return os.path.relpath(path, folder), ""


def _on_every_machine(environment: Mapping[str, Any]) -> bool:
    """Returns True if its bits do not depend on the CPU."""
    settings = environment.get("op_determinism")
    return isinstance(settings, Mapping) and settings.get("machine_invariant") is True


def _name_of(line: str) -> str | None:
    path = line.split(":", 1)[0]
    return _NAMES.get(path) or _NAMES.get(path.split(".", 1)[0])


def _chosen_hyperparameters(obj: Any) -> list[dict[str, Any]]:
    """Returns the values that a program chose for an optimizer, by parameter group, or for a scheduler."""
    if isinstance(obj, torch.optim.Optimizer):
        return [_hyperparameters(_with_initial_lr(group)) for group in obj.param_groups]
    return [_hyperparameters(obj.state_dict())]


def _with_initial_lr(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the group with the `lr` that the program gave: a scheduler has put its first one there, 0.0 in a warm-up."""
    return {**group, "lr": group["initial_lr"]} if "initial_lr" in group else group


def _hyperparameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns plain values, as JSON has them. A scheduler's learning rates follow from the optimizer's `lr`."""
    plain = {name: _plain(value) for name, value in values.items() if name not in _DERIVED}
    return {name: value for name, value in plain.items() if isinstance(value, (*_PLAIN, list))}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, _PLAIN) else str(type(value).__name__)
