"""`samebits env`: what the bits depend on besides the program."""

from __future__ import annotations

import json

from samebits import determinism


def env() -> None:
    """Print the environment fingerprint: versions, processor, threads, switch.

    Exit status: 0.
    """
    print(json.dumps(determinism.environment_fingerprint(), indent=2))
