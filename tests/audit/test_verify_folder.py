"""`samebits verify` leaves the user's files as they are: the script works in a copy of the current folder."""

import os
import subprocess
import sys

import pytest

from samebits.audit.compare import Difference
from samebits.audit.verify.plan import Check
from samebits.audit.verify.cures import cure_of
from samebits.audit.verify.folder import MOST_BYTES, MOST_FILES, WorkingFolder, check_size
from samebits.errors import VerifyError

WRITES = """
import os
import torch
import helper
torch.manual_seed(0)
data = torch.load("../data/x.pt")
assert os.path.exists("../../above.txt")
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("metrics.csv", "a") as file:
        file.write("new\\n")
torch.save(model.state_dict(), "runs/x/best.pt")
open("link/through.txt", "w").write("new")
"""


@pytest.fixture
def project(tmp_path):
    """A project with trained files, data beside it, and an absolute link into itself."""
    import torch

    folder = tmp_path / "group" / "project"
    for made in (folder / "runs" / "x", folder.parent / "data", folder / ".git"):
        made.mkdir(parents=True)
    (tmp_path / "above.txt").touch()
    torch.save(torch.ones(8, 6), folder.parent / "data" / "x.pt")
    (folder / "train.py").write_text(WRITES)
    (folder / "helper.py").touch()
    (folder / "runs" / "x" / "best.pt").write_bytes(b"trained for a week")
    (folder / "runs" / "through.txt").write_text("trained")
    (folder / "metrics.csv").write_text("week,1\n")
    (folder / "link").symlink_to(folder / "runs")
    return folder


def content(folder):
    """Path to bytes of all files."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verify(folder, *words):
    command = [sys.executable, "-m", "samebits", "verify", "--checks", "run-again", "--jobs", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


@pytest.mark.parametrize("absolute", [False, True])
def test_what_the_script_writes_leaves_the_users_files_alone(project, absolute):
    """best.pt, metrics.csv and a file behind a link are byte for byte as before; ../data and ../.. are found."""
    before = content(project)
    done = verify(project, str(project / "train.py") if absolute else "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert content(project) == before


def test_in_place_overwrites_them_and_says_so(project):
    """Negative control: with --in-place the same script does change the same files."""
    before = content(project)
    done = verify(project, "--in-place", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    changed = {os.path.basename(path) for path, data in content(project).items() if before.get(path) != data}
    assert {"best.pt", "metrics.csv", "through.txt"} <= changed
    assert "were overwritten" in done.stdout


def test_a_folder_too_large_to_copy_is_refused_before_anything_starts(project):
    """One line with the size, the folder and the cure; what is skipped does not count."""
    with open(project / ".git" / "pack", "wb") as file:
        file.truncate(2 * MOST_BYTES)
    check_size(project)  # negative control
    with open(project / "weights.bin", "wb") as file:
        file.truncate(MOST_BYTES + 10**6)
    done = verify(project, "train.py")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in ("201 MB", str(project), "--in-place"))
    assert content(project)[str(project / "metrics.csv")] == b"week,1\n"


def test_too_many_files_are_refused(tmp_path):
    """The number of files counts, too."""
    for number in range(MOST_FILES):
        os.mknod(tmp_path / str(number))
    check_size(tmp_path)  # negative control: exactly as many as may be
    (tmp_path / "one more").touch()
    with pytest.raises(VerifyError, match=f"{MOST_FILES + 1} files"):
        check_size(tmp_path)


def test_links_of_the_copy_lead_into_the_copy_or_to_the_very_thing(project, tmp_path):
    """Relative or absolute: inside leads to the copy, outside to where it led; a dangling one stays one."""
    (project / "inner").symlink_to("runs/x")
    (project / "outer").symlink_to("../data")
    (project / "nothing").symlink_to("nowhere")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    copy = WorkingFolder.of(project, scratch).copy_to(scratch / "copy")
    real = {name: os.path.realpath(copy / name) for name in ("inner", "link", "outer")}
    assert real["inner"] == str(copy / "runs" / "x") and real["link"] == str(copy / "runs")
    assert real["outer"] == str(project.parent / "data")
    assert os.readlink(copy / "nothing") == "nowhere"
    assert not (copy / ".git").exists()


def test_cures_name_the_callback_and_the_object():
    """A callback's attribute, and a local object's; a plain local variable has the general cure (negative control)."""
    kill = Check("kill", "killed")
    cures = [
        cure_of(kill, Difference(1, component, (path,)))
        for component, path in (
            ("state", "callbacks[0].best"),
            ("locals", "sched.last_epoch"),
            ("locals", "best"),
            ("locals", "loader.dataset.count"),
        )
    ]
    assert "take it back in load_state_dict" in cures[0]
    assert "samebits.Run(..., sched=sched)" in cures[1]
    assert all("run.state.NAME" in cure for cure in cures[2:])
