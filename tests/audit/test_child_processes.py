"""Child processes never outlive a check."""

import os
import re
import signal
import subprocess
import sys

import pytest

from samebits.audit._verify.child_processes import (
    run_child,
    run_until_signalled,
    scratch_folder,
)
from waiting import is_alive, wait_until

DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    print(os.getpid(), flush=True)\n"
    "time.sleep(200)\n"
)


def in_scratch(folder, program, limit=30):
    """Arguments that run a Python program as a member of the scratch."""
    environment = {**os.environ, "TMPDIR": f"{folder}/t"}
    return [sys.executable, "-c", program], environment, folder / "log", limit


def test_a_child_that_takes_too_long_is_killed_with_its_group():
    """The time limit kills, and says so."""
    with scratch_folder() as folder:
        ended = run_until_signalled(run_child(*in_scratch(folder, "import time; time.sleep(60)", 0.3)))
    assert ended.timed_out and ended.returncode == -signal.SIGKILL and ended.seconds < 50


def test_output_and_exit_status_come_back(tmp_path):
    """Both streams are in the log; its last line is what an exception said."""
    with scratch_folder() as folder:
        ended = run_until_signalled(
            run_child(*in_scratch(folder, "print(1, flush=True); raise ValueError('why')"))
        )
        assert (ended.returncode, ended.tail(1)) == (1, "ValueError: why")
        assert ended.tail(9, re.compile("Traceback")) == "1"  # what another program reports below is left out


def test_a_process_that_left_its_group_ends_with_the_scratch():
    """A daemon in a session of its own is found by its TMPDIR; before the scratch closes it lives."""
    with scratch_folder() as folder:
        for limit in (1.0, 5.0, 25.0, 125.0):  # a loaded machine may start no program in a second
            ended = run_until_signalled(run_child(*in_scratch(folder, DAEMON, limit)))
            if ended.tail(1).isdigit():
                break
        daemon = int(ended.tail(1))
        assert is_alive(daemon)  # negative control: killing the group is not enough
    assert not is_alive(daemon)
    assert not folder.exists()


PARENT = """
import os, sys
from pathlib import Path
from samebits.audit._verify.child_processes import SignalledError, run_child, run_until_signalled, scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    environment = {**os.environ, "TMPDIR": f"{folder}/t"}
    try:
        run_until_signalled(run_child([sys.executable, "-c", sys.argv[1]], environment, folder / "log", None))
    except SignalledError as signalled:
        sys.exit(128 + signalled.number)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_however_the_parent_is_ended(number):
    """Child, its daemon and the scratch folder are gone after each signal, SIGKILL included."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, DAEMON], stdout=subprocess.PIPE, text=True)
    folder = parent.stdout.readline().strip()
    log = f"{folder}/log"
    assert wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 1)
    with open(log) as file:
        daemon = int(file.read())
    assert is_alive(daemon)
    parent.send_signal(number)
    assert parent.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    assert wait_until(lambda: not is_alive(daemon) and not os.path.exists(folder))


def test_a_kept_scratch_stays():
    """`keep` leaves the folder and still ends the processes."""
    with scratch_folder(keep=True) as folder:
        pass
    assert folder.exists()
    folder.rmdir()


def test_a_long_tmpdir_does_not_make_the_paths_of_sockets_too_long(tmp_path, monkeypatch):
    """Where TMPDIR is so long that loader workers could not open their sockets, the scratch is in /tmp."""
    long = tmp_path / ("x" * 40)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with scratch_folder() as folder:
        assert str(folder.parent) == "/tmp"
