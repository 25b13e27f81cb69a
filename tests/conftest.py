"""Shared by all tests: real child processes, and one Hypothesis profile that draws the same examples every time."""

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gloo_ranks import first_optimizer as first_optimizer
from gloo_ranks import ranks as ranks

settings.register_profile(
    "samebits", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("samebits")

# A job that a shell has put into the background ignores SIGINT, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Loader workers of torch open sockets below TMPDIR, whose paths have 107 characters at most: else they wait for ever.
if len(tempfile.gettempdir()) > 40:
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"


def pytest_addoption(parser):
    parser.addoption(
        "--slow-share",
        default="0/1",
        metavar="K/N",
        help="of the slow tests only the K-th of N parts (0 to N - 1)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Takes a part of the slow tests. Which part a case is in depends on its name alone."""
    seen = set()
    for item in items:
        if item.get_closest_marker("first_case_quick"):
            function = item.nodeid.partition("[")[0]
            if function in seen:
                item.add_marker("slow")
            seen.add(function)
    part, parts = map(int, config.getoption("--slow-share").split("/"))

    def is_left_out(item):
        return item.get_closest_marker("slow") and zlib.crc32(item.nodeid.encode()) % parts != part

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


def pytest_collection_finish():
    """What is imported by now stays: the collector, and what looks for objects in all of them, need not walk it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _left_alone():
    """So with what a file of tests leaves behind: the runs of the last files took five times as long."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def soak(record_property):
    """`soak(name, number)` counts: summed up over the tests of a soak, and shown at its end."""
    counts = {}
    record_property("soak", counts)

    def count(name, number=1):
        counts[name] = counts.get(name, 0) + number

    return count


def pytest_terminal_summary(terminalreporter):
    """What a soak has counted. The counts come with the tests' reports: what a process of xdist prints is swallowed."""
    counts = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if getattr(report, "when", "") == "call":
            for name, value in report.user_properties:
                counts.update(value if name == "soak" else {})
    if counts:
        terminalreporter.section("counts of the soak")
        for name, count in counts.items():
            terminalreporter.line(f"{count:7} {name}")


@pytest.fixture
def one_thread():
    """OpenMP's threads do not survive a fork: for tests that run scripts in forks of this process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def python(tmp_path):
    """Runs Python source as a script in a process of its own, in an empty folder; returns the CompletedProcess."""

    def run(source, *args, env=None, code=0, timeout=280):
        script = tmp_path / "script.py"
        script.write_text(source)
        done = subprocess.run(
            [sys.executable, str(script), *map(str, args)],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def interpreted(root):
    """Passes the tests in a file in Triton's interpreter, which must be chosen before Triton is imported."""

    def run(tests):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tests)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

    return run


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _process_as_before():
    """A test that sets the switch, seeds, threads or the run's position in this process leaves none of it behind."""
    import torch

    from samebits import _context as context
    from samebits import determinism
    from samebits._objects import rng_states

    before = rng_states.of_process()  # not preserve_states(): a seed that a test sets is one that lasts
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    before.restore()
    determinism.enable_op_determinism(False)
    fresh = context._ProcessState()
    for name in vars(fresh):
        setattr(context.process, name, getattr(fresh, name))


@dataclass
class Ended:
    """How a forked child ended: exit code (negative: the signal that killed it) and what its function returned."""

    code: int
    value: object = None


@pytest.fixture
def forked(first_optimizer):
    """Runs a function in a forked process of its own: as real a process as any, without the seconds of `import torch`."""

    def run(work, *args):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                code = _child(work, args, writer)
            finally:
                os._exit(code)  # whatever happens, no second pytest goes on
        os.close(writer)
        try:
            with os.fdopen(reader, "rb") as file:
                data = file.read()
        except BaseException:  # the test's time is up
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(code, pickle.loads(data) if data else None)

    return run


def _child(work, args, writer):
    import torch

    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    try:
        value = work(*args)
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps(value))
        return 0
    except SystemExit as error:
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
