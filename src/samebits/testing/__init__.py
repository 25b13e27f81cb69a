"""Proofs for your own tests: a class resumes exactly, a program survives being killed."""

from samebits.testing.exact import assert_resumes_exactly as assert_resumes_exactly
from samebits.testing.killing import KilledRun as KilledRun
from samebits.testing.killing import run_and_kill as run_and_kill
