"""Disks that refuse: full, limited, read-only, forbidden. What was committed stays and the message says so."""

import json
import os
import subprocess
import sys
import tempfile

import pytest
import torch

from samebits.checkpoint._store import CommitStore
from samebits.errors import CommitError, RunDirectoryError
from store_commits import write_commit

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}


@pytest.fixture
def volume(tmp_path):
    """A file system of 1 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"mount is not permitted: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_keeps_the_last_commit_and_says_all(volume):
    """ENOSPC in a commit: one line with bytes wanted and free, the safe step and the cure; then it goes on."""
    with CommitStore(volume / "run") as store:
        write_commit(store, 7, {"x": torch.ones(50_000)}, **FACTS)
        with pytest.raises(CommitError) as caught:
            write_commit(store, 8, {"x": torch.ones(250_000)}, **FACTS)
        message = str(caught.value)
        for words in (
            "step 8",
            str(volume / "run"),
            "No space left",
            "1.001 MB wanted",
            "MB free",
            "step 7 is safe",
            "Free some space",
        ):
            assert words in message
        assert "\n" not in message
        assert [path.name[:12] for path in (volume / "run/commits").iterdir()] == ["000000000007"]
        assert CommitStore(volume / "run").newest()[0].step == 7
        assert write_commit(store, 9, {"x": torch.ones(50_000)}, **FACTS).step == 9


def test_a_full_disk_before_the_first_commit(volume):
    """ENOSPC with nothing committed yet says so; a folder that cannot even be locked raises and stays usable later."""
    (volume / "full").write_bytes(bytes(os.statvfs(volume).f_bavail * os.statvfs(volume).f_bsize))
    store = CommitStore(volume / "run")
    with pytest.raises(RunDirectoryError, match="No space left.*Free some space"):
        store.open()
    (volume / "full").unlink()
    with store:
        with pytest.raises(CommitError, match="There is no earlier commit"):
            write_commit(store, 0, {"x": torch.ones(500_000)}, **FACTS)


def test_a_read_only_file_system_is_named(volume):
    """EROFS: open() raises RunDirectoryError with the cure, and reading still works."""
    with CommitStore(volume / "run") as store:
        write_commit(store, 7, {"x": torch.ones(5)}, **FACTS)
    subprocess.run(["mount", "-o", "remount,ro", volume], check=True)
    for folder in ("run", "other"):
        with pytest.raises(
            RunDirectoryError, match="Read-only file system.*Mount the file system writable again"
        ):
            CommitStore(volume / folder).open()
    assert CommitStore(volume / "run").newest()[0].step == 7


FORBIDDEN = """
import os, sys
from samebits.checkpoint._store import CommitStore
from samebits.errors import RunDirectoryError
os.setuid(65534) if os.getuid() == 0 else None
for folder in sys.argv[1:]:
    try:
        CommitStore(folder).open()
        print("opened")
    except RunDirectoryError as error:
        print(error)
"""


def test_a_folder_without_permission_is_named():
    """As an ordinary user, a folder of somebody else raises RunDirectoryError with the cure; an own one opens."""
    with tempfile.TemporaryDirectory() as root:
        own, closed = f"{root}/own", f"{root}/closed"
        for folder, mode in ((root, 0o755), (own, 0o777), (closed, 0o555)):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, mode)
        command = [sys.executable, "-c", FORBIDDEN, own, closed, f"{closed}/new"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        os.chmod(closed, 0o755)
    assert told[0] == "opened"
    for line, folder in zip(told[1:], (closed, f"{closed}/new"), strict=True):
        assert line.startswith(f"run directory {folder} cannot be used: Permission denied")
        assert "Give this user write permission" in line


LIMITED = """
import json, resource, sys, torch
from samebits.checkpoint._store import CommitStore
from samebits.errors import CommitError
FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
said = []
with CommitStore(sys.argv[1]) as store:
    store.write(store.prepare({"x": torch.ones(100_000)}, step=1, **FACTS))
    for limit in (100_000, 200, 0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            store.write(store.prepare({"x": torch.zeros(100_000 if limit > 200 else 5)}, step=2, **FACTS))
            said.append("no error")
        except CommitError as error:
            said.append(str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said.append(store.newest()[0].step)
    said.append(store.write(store.prepare({"x": torch.zeros(100_000)}, step=3, **FACTS)).step)
    said.append(len(list((store.run_dir / "commits").iterdir())))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_limit_on_file_sizes_fails_one_commit_and_no_more(tmp_path):
    """EFBIG in the tensors or in the manifest: CommitError with the cure, the last commit stays, the next one works."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    *errors, newest, after, left = json.loads(done.stdout)
    for message in errors:
        assert "File too large" in message
        assert (
            "step 1 is safe. Raise the limit on file sizes (ulimit -f) and run again: it resumes from step 1"
            in message
        )
    assert (newest, after, left) == (1, 3, 2)
