"""The environment of a run, saved in its commits and compared at a resume.

What may change is accepted by name: `Run(allow_changes=["torch", "cpu"])`. A changed script is warned of and
recorded; the number of threads is restored. Hyperparameters have a module of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from samebits._arguments import require
from samebits._byte_digest import of_bytes
from samebits._context import process
from samebits._inspect import user_code
from samebits._unseeded import CURE, no_seed
from samebits.checkpoint._manifest import Manifest
from samebits.determinism import environment_fingerprint
from samebits.errors import RunMismatchError
from samebits.random._process import seeds
from samebits.train import _hyperparameters as hyperparameters
from samebits.train._hyperparameters import Hyperparameters

_NAMES = {
    "packages.samebits": "samebits",
    "packages.torch": "torch",
    "packages.numpy": "numpy",
    "packages.llvmlite": "llvmlite",
    "python": "python",
    "platform": "platform",
    "libc": "libc",
    "cpu": "cpu",
    "cpu_capability": "cpu",
    "mkldnn": "torch",
    "arithmetic_bits": "arithmetic_bits",
    "gpus": "gpu",
    "cuda": "gpu",
    "threads": "threads",
    "op_determinism": "flags",
    "flags": "flags",
    "libraries": "libraries",
    "scripts": "script",
}
"""The name of each entry of the fingerprint in `allow_changes`; other entries do not affect bits."""

KNOWN = (*dict.fromkeys(_NAMES.values()), hyperparameters.NAME)


@dataclass
class Environment:
    """The environment that the commits of one process record."""

    fingerprint: dict[str, Any]
    scripts: list[dict[str, Any]]
    """The script and the user's modules that it had imported, by digest, each with its first step."""
    hyperparameters: Hyperparameters

    @classmethod
    def current(cls, objects: Mapping[str, Any], world_size: int) -> Environment:
        """Returns the environment of this process, on entering a run."""
        now = {**environment_fingerprint(), "world_size": world_size}
        return cls(now, [{"step": 0, "files": script_digests()}], Hyperparameters(objects))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for a commit."""
        return {**self.fingerprint, "scripts": self.scripts, "optimizers": self.hyperparameters.to_dict()}

    def share(self, shards: int) -> None:
        """Makes the bits those of any number of processes that share out as many logical shards."""
        self.fingerprint.pop("world_size", None)
        self.fingerprint["shards"] = shards

    def resume(self, manifest: Manifest, where: str, allowed: Collection[str]) -> None:
        """Resumes from `manifest`: restores the threads, warns of another script.

        Raises `RunMismatchError` when the number of threads matters and cannot be restored.
        """
        recorded = manifest.environment
        if "threads" not in allowed and not process.overrides.any_environment:
            self._restore_threads(recorded, where)
        self._record_script(manifest, where, warn="script" not in allowed)

    def check(self, manifest: Manifest, where: str, allowed: Collection[str]) -> None:
        """Raises `RunMismatchError` with the list of differences that are not allowed, each with its name.

        Another C library, whose `math` functions may round otherwise, is refused where the bits are to be
        those of every machine, and else warned of.
        """
        if process.overrides.any_environment:
            return
        recorded = manifest.environment
        left = {"threads"} if "libc" in recorded else {"threads", "libc"}  # an older commit does not say
        everywhere = _on_every_machine(recorded) and _on_every_machine(self.fingerprint)
        if everywhere:
            left |= {"cpu", "cpu_capability", "libraries"}
        unset: dict[str, Any] = {"libraries": {}, "arithmetic_bits": 1}
        compared = {*self.fingerprint, *unset} - left
        before = {name: recorded.get(name, unset.get(name)) for name in compared}
        now = {name: self.fingerprint.get(name, unset.get(name)) for name in compared}
        changed = {line: _name_of(line) for line in _differences(before, now)}
        others = {line: name for line, name in changed.items() if name is not None and name not in allowed}
        if "libc" in others.values() and not everywhere:
            line = next(line for line, name in others.items() if name == "libc")
            del others[line]
            user_code.warn(
                f"{where} was made with another C library ({line}): `math.exp` and its like may round "
                "otherwise. Use the same system image, or be silent by Run(allow_changes=['libc'])."
            )
        refused = [f"{line} ({name!r})" for line, name in others.items()]
        if refused:
            accepted = sorted({name for name in changed.values() if name is not None} | set(allowed))
            raise RunMismatchError(
                f"{where} was made in another environment, where the same bits are not promised:\n  "
                + "\n  ".join(refused)
                + f"\nGo back to it, or accept what changed by name: Run(allow_changes={accepted})."
            )

    def _restore_threads(self, recorded: Mapping[str, Any], where: str) -> None:
        """Sets the number of intra-op threads that the run began with, where bits depend on it."""
        settings, threads, now = process.op_determinism, recorded.get("threads"), torch.get_num_threads()
        any_number = settings is not None and settings.across != "runs"
        if any_number or not isinstance(threads, int) or threads == now:
            return
        torch.set_num_threads(threads)
        self.fingerprint["threads"] = got = torch.get_num_threads()
        if got != threads:
            raise RunMismatchError(
                f"{where} was made with {threads} intra-op threads, and here there are {got}. Allow as many, "
                'switch on enable_op_determinism(across="threads") from the first step on, or accept other '
                "bits: Run(allow_changes=['threads'])."
            )
        print(
            f"samebits: the run began with {threads} threads, so torch.set_num_threads({threads}) was called "
            f"(it was {now})",
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
            changes = [f"{name} {_change_of(name, before, now)}" for name in changed[:5]]
            user_code.warn(
                f"{', '.join(changes)} since {where} was committed at step {manifest.step}: from here on the "
                "run is another program's, and will not end with the bits of either. The commits record it. "
                "Run(allow_changes=['script']) is silent about it."
            )


def _change_of(script: str, before: Collection[str], now: Collection[str]) -> str:
    if script not in now:
        return "is not used any more"
    return "changed" if script in before else "is new"


def check_names(allowed: Any) -> frozenset[str]:
    """Returns the names in `allow_changes`. `InvalidArgumentError` for unknown ones and "world_size"."""
    names = list(allowed) if isinstance(allowed, Collection) and not isinstance(allowed, str) else [allowed]
    as_many = (
        "a run resumes with as many processes as it began with. A commit holds a state for each rank, and "
        "its position counts batches of one rank. Begin a new run directory with its weights "
        "(samebits.checkpoint.load_weights)"
    )
    require("world_size" not in names, "Run", as_many, allow_changes=allowed)
    listed = f"a list of what may differ from the commit's environment, of: {', '.join(KNOWN)}"
    known = all(name in KNOWN for name in names)
    require(known and names != [allowed], "Run", listed, allow_changes=allowed)
    return frozenset(names)


def script_digests() -> dict[str, str]:
    """Returns digests of the script's file, and of imported user modules beside or below it."""
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
            return os.path.relpath(path, folder), of_bytes(file.read())
    except OSError:  # it was moved since
        return os.path.relpath(path, folder), ""


def _on_every_machine(environment: Mapping[str, Any]) -> bool:
    """Returns True if its bits do not depend on the CPU."""
    settings = environment.get("op_determinism")
    return isinstance(settings, Mapping) and settings.get("across") == "machines"


def _name_of(line: str) -> str | None:
    path = line.split(":", 1)[0]
    return _NAMES.get(path) or _NAMES.get(path.split(".", 1)[0])


@dataclass(frozen=True)
class RunSeed:
    """A run's seed."""

    seed: int
    seeded: bool
    """True if the program set it; else the operating system chose it at the run's first start."""


def resolve_seed(manifest: Manifest | None, where: str) -> RunSeed:
    """Returns the seed that the program set; a program without one keeps the seed of the run's first start.

    Raises `UnseededError` for none under op determinism, `RunMismatchError` for another than the commit's.
    """
    mine = seeds.root_seed()
    recorded = None if manifest is None else RunSeed(**manifest.program)
    if mine is None:
        if process.op_determinism:
            raise no_seed("Run begins under op determinism")
        user_code.warn(f"Run: no seed was set, so another run will end with other weights. {CURE}.")
        process.seed = torch.initial_seed() if recorded is None else recorded.seed
        return RunSeed(process.seed, seeded=False)
    if recorded is not None and recorded.seeded and recorded.seed != mine:
        raise RunMismatchError(
            f"{where} was made with seed {recorded.seed}, this program has seed {mine}. "
            "Set the same seed, or use another run directory."
        )
    return RunSeed(mine, seeded=True)


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> list[str]:
    """Returns a line for each entry that differs, as `packages.torch: 2.12.0 then, 2.13.0 now`."""
    lines = []
    for name in sorted({*then, *now}):
        before, after = then.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += _differences(before, after, f"{inside}{name}.")
        elif before != after:
            lines.append(f"{inside}{name}: {before} then, {after} now")
    return lines
