"""Shared by the tests of the ops: the thread counts, and replacements put in front without the rest of the switch."""

from contextlib import contextmanager

from samebits.determinism.overrides import Overrides

THREADS = (1, 2, 3, 4, 8)


@contextmanager
def replaced(*modules):
    """The replacements of these modules (or tuples of replacements), taken away at the end."""
    overrides = Overrides()
    try:
        for module in modules:
            for one in getattr(module, "REPLACEMENTS", module):
                overrides.put(one.op, one.device, one.make)
        yield
    finally:
        overrides.remove()
