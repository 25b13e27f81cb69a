"""Cases for the tests of the runner, on the CPU: what devices do to a process, done on purpose."""

import ctypes
import os
import time

import pytest


@pytest.fixture
def pid(target):
    target.figures["pid"] = os.getpid()


def test_first(target, pid):
    target.goals["at least as fast"] = True


def test_unequal(target):
    target.check(lambda results: ["a is 0, not 1"], lambda target: {"a": 0})


def test_crash():
    ctypes.string_at(0)


def test_behind_the_crash(pid):
    pass


def test_fault():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_behind_the_fault(pid):
    pass


def test_fault_of_a_launch():
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def test_behind_the_launch(pid):
    pass


@pytest.mark.limit(2)
def test_hang():
    time.sleep(600)


def test_missing():
    pytest.importorskip("no_such_package")


@pytest.mark.parametrize("number", range(4))
def test_slow(number):
    time.sleep(4)
