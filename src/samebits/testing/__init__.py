"""Proofs for your own tests: a class resumes exactly, a program survives being killed."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.testing.exact import assert_resumes_exactly as assert_resumes_exactly
    from samebits.testing.killing import KilledRun as KilledRun
    from samebits.testing.killing import run_and_kill as run_and_kill

__getattr__, __dir__ = attach(
    __name__,
    names={
        "KilledRun": "samebits.testing.killing",
        "assert_resumes_exactly": "samebits.testing.exact",
        "run_and_kill": "samebits.testing.killing",
    },
)
