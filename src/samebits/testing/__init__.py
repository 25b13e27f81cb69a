"""Proofs for your own tests: a class resumes exactly, a program survives being killed."""

from samebits.testing.exact import assert_resumes_exactly as assert_resumes_exactly
