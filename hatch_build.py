"""Puts the kernels that `make wheel` compiled into the wheel, which then is one for Linux on x86-64."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):
    """Without build/packs the wheel is one for any machine, where kernels are compiled at their first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the packs, except to an editable install."""
        packs = sorted(Path(self.root, "build", "packs").glob("*.zip"))
        if version == "standard" and packs:
            build_data["force_include"] |= {
                str(pack): f"samebits/_native/packs/{pack.name}" for pack in packs
            }
            build_data["tag"] = "py3-none-manylinux_2_28_x86_64"
