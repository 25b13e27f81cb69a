"""Proofs for your own tests: a class resumes exactly, a program survives kills.

Read `_resumes_exactly.py` first. Doors: here and in pyproject.toml. Imports: `integrations` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.testing import _run_and_kill as _run_and_kill
    from samebits.testing._resumes_exactly import assert_resumes_exactly as assert_resumes_exactly
    from samebits.testing._run_and_kill import KilledRun as KilledRun
    from samebits.testing._run_and_kill import run_and_kill as run_and_kill

__getattr__, __dir__ = attach(__name__)
