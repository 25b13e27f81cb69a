"""Triton's autotuning of a user's kernels: timings choose between configurations, and configurations may round differently."""

from __future__ import annotations

import functools
from typing import Any

from samebits._inspect.patching import Patches


def pin_first_configuration(autotuner: Any, patches: Patches) -> None:
    """Makes a user's `triton.autotune` take its first configuration: the fastest of a timing varies from day to day."""
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def with_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        every, self.configs = self.configs, self.configs[:1]
        try:
            return run(self, *args, **kwargs)
        finally:
            self.configs = every

    patches.put(autotuner.Autotuner, "run", with_first)
