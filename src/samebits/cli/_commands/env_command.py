"""`samebits env`: the environment that the bits depend on."""

from __future__ import annotations

import json

from samebits import determinism


def env() -> None:
    """Print the environment fingerprint: versions, processor, threads, switch.

    Exit status: 0.
    """
    print(json.dumps(determinism.environment_fingerprint(), indent=2))
