"""The words of `UnseededError`: what needed a seed, what happens without one, and the line that sets it."""

from __future__ import annotations

from samebits.errors import UnseededError

NEXT_RUN = "the next run would draw other numbers"
CURE = "Call samebits.set_random_seed(seed) at the top of the program"


def no_seed(subject: str, otherwise: str = NEXT_RUN, instead: str = "") -> UnseededError:
    """Returns the error of a use of the process's seed, which was not set: `subject` has its verb."""
    return UnseededError(
        f"{subject}, and no seed was set: {otherwise}. {CURE}{instead and f', or {instead}'}."
    )


def from_entropy(subject: str, instead: str) -> UnseededError:
    """Returns the error of a source that takes its seed from the operating system, as `subject` says."""
    return UnseededError(f"{subject}: {NEXT_RUN}. Use {instead}.")
