"""Parts for the tests of the runner, measured on the CPU: what devices do to a check, done on purpose."""

import ctypes
import os
import time

import torch

from samebits.selfcheck import Case, Part
from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Measured, expected


def equal(place):
    return Measured({"a": torch.ones(3), "b": torch.ones(3)}, {"ratio": 1.5}, {"at least as fast": True})


def unequal(place):
    return Measured({"a": torch.zeros(3), "b": torch.tensor([0.0, 0.0, -0.0])})


def crashes(place):
    ctypes.string_at(0)


def faults(place):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def launches(place):
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def hangs(place):
    time.sleep(600)


def process(place):
    return Measured({"pid": os.getpid()}, {"pid": str(os.getpid())})


def good():
    return [Case("equal", equal, same), Case("again", equal, same)]


def bad():
    return [
        Case("first", process, lambda results: ()),
        Case("unequal", unequal, same),
        Case("crash", crashes, same),
        Case("behind the crash", process, lambda results: ()),
        Case("fault", faults, same),
        Case("behind the fault", process, lambda results: ()),
        Case("fault of a launch", launches, same),
        Case("behind the launch", process, lambda results: ()),
        Case("hang", hangs, same, limit_s=1.0),
        Case("missing", equal, same, needs=("no_such_package",)),
        Case("last", equal, same),
    ]


def slow():
    def waits(place):
        time.sleep(1.5)
        return Measured({"a": 1})

    return [Case(f"case {n}", waits, expected(a=1)) for n in range(4)]


def blind():
    return [
        Case("sees nothing", equal, lambda results: ()),
        Case("no result", lambda place: Measured({}), same),
    ]
