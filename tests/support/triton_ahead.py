"""What the launchers would run on a GPU, compiled without one: their own kernels, argument types, constants and options."""

from contextlib import contextmanager

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Device:
    """Stands where Triton asks the driver for the GPU; nothing is launched on it."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return self.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, _device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def launches(backends, launcher):
    """In the block the CPU's tensors go to the launcher, which runs nothing: gives a list of (kernel, arguments, constants and options)."""
    found, run, cpu = [], JITFunction.run, backends._CPU

    def note(kernel, *args, grid, warmup, **given):
        found.append((kernel, args, given))
        args[kernel.arg_names.index("out")].zero_()  # whoever launches goes on with it

    JITFunction.run, backends._CPU = note, launcher
    try:
        yield found
    finally:
        JITFunction.run, backends._CPU = run, cpu


def compiled(launch, capability, **changed):
    """A launch as Triton would have it for a GPU of that capability; `changed`: options instead of the launcher's."""
    kernel, args, given = launch
    before = driver._active
    driver.set_active(Device(capability))
    try:
        return kernel.run(*args, grid=(1,), warmup=True, **{**given, **changed})
    finally:
        driver._active = before


def name_of(launch):
    """Kernel, dtypes of its tensors, constants that are not 0."""
    kernel, args, given = launch
    kinds = [str(arg.dtype).removeprefix("torch.") for arg in args if isinstance(arg, torch.Tensor)]
    constants = [f"{name}={value}" for name, value in given.items() if name in kernel.arg_names and value]
    return " ".join([kernel.__name__, *kinds, *constants])


def cases(found):
    """The different launches, for pytest: for sm_90 each kernel with each dtype and constants, and once with a key per row;
    for sm_80 each kernel with each of its formulas and sizes."""
    newer, older = {}, {}
    for one in found:
        kernel, args, given = one
        rows = given.get("ONE_KEY") is False
        newer.setdefault(f"{kernel.__name__} rows" if rows else name_of(one), one)
        if not rows:
            older.setdefault((kernel.__name__, given.get("NAME"), args[1].itemsize), one)
    tried = [(one, capability) for kept, capability in ((newer, 90), (older, 80)) for one in kept.values()]
    return {"argvalues": tried, "ids": [f"{name_of(one)} sm_{capability}" for one, capability in tried]}


def kernels_of(*modules):
    """The names of what is launched of these modules: functions of Triton's that no other one of them calls."""
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, JITFunction) and value.__module__ == module.__name__
    ]
    called = {name for one in found for name in one.fn.__code__.co_names if name != one.__name__}
    return {one.__name__ for one in found} - called
