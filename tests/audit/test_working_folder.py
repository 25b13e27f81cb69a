"""`samebits verify` leaves the user's files as they are: each check sees the current folder and keeps what it writes."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from samebits.audit._verify.child_processes import scratch_folder
from samebits.audit._verify.working_folder import FEW_BYTES, MOST_BYTES, Links, Overlay, WrittenError
from samebits.errors import VerifyError

ALONE = [sys.executable, "-I", "-S"]
REASON = "tried without"

# What this machine may refuse, a process can be refused by: no capability (20 is the bounding set's prctl number), and
# no further user namespace. Only SYS_ADMIN away is what an ordinary user has, who gets a user namespace.
WITHOUT = """
import ctypes, os, sys
what, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
ids = os.getuid(), os.getgid()
if what == "overlay":
    assert libc.unshare(0x10020000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", "{0} {0} 1".format(ids[0])), ("gid_map", "{0} {0} 1".format(ids[1]))):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
for number in range(64) if what == "overlay" else [21]:
    libc.prctl(24, number, 0, 0, 0)
os.execv(command[0], command)
"""


def without(what, *command):
    """The command where "overlay" cannot be had, or not as "root"."""
    return [*ALONE, "-c", WITHOUT, what, *map(str, command)]


def can_overlay():
    """Whether this machine allows one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.mkdir(folder + "/user")
        os.mkdir(folder + "/scratch")
        try:
            Overlay.of(Path(folder, "user"), Path(folder, "scratch"))
        except OSError:
            return False
    return True


overlaid = pytest.mark.skipif(not can_overlay(), reason="this machine allows no overlay")

ATTACK = """
import os, sys, shutil
os.chdir(sys.argv[1])
open("best.pt", "r+b").write(b"new")
open("metrics.csv", "a").write("new\\n")
os.remove("old.txt")
os.rename("runs/x/a.txt", "runs/x/b.txt")
os.chmod("mode.txt", 0o600)
os.utime("time.txt", (1, 1))
os.truncate("short.txt", 1)
open("link/through.txt", "w").write("new")
open("made.txt", "w").write("new")
open(os.path.abspath("absolute.txt"), "w").write("new")
shutil.rmtree("gone")
os.mkdir("gone")
os.symlink("made.txt", "symlink")
assert os.listdir("gone") == []
assert open("best.pt", "rb").read(3) == b"new"
assert open("metrics.csv").read().endswith("new\\n")
assert stat.S_IMODE(os.stat("mode.txt").st_mode) == 0o600 if (stat := __import__("stat")) else None
"""

SEES = """
import os, sys
os.chdir(sys.argv[1])
print(open("made.txt").read(), os.path.exists("old.txt"), os.listdir("gone"), sorted(os.listdir("runs/x")))
"""


@pytest.fixture
def short():
    """A folder with a path short enough for TMPDIR, removed with whatever a test leaves in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def project(short):
    """A project with files of a week's training, an absolute link into itself, and files beside and above it."""
    folder = short / "group" / "pro:j,e\\ct é"
    for made in (folder / "runs" / "x", folder / "gone" / "deep", folder.parent / "data"):
        made.mkdir(parents=True)
    for name in (
        "old.txt",
        "mode.txt",
        "time.txt",
        "short.txt",
        "absolute.txt",
        "runs/x/a.txt",
        "gone/deep/f",
    ):
        (folder / name).write_text("trained for a week")
    (folder / "best.pt").write_bytes(b"trained for a week" * 10)
    (folder / "runs" / "through.txt").write_text("trained")
    (folder / "metrics.csv").write_text("week,1\n")
    (folder / "mode.txt").chmod(0o644)
    (folder / "link").symlink_to(folder / "runs")
    (short / "above.txt").touch()
    return folder


def content(folder):
    """Path to type, mode, time of change and bytes (a hole's are left out) of everything."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        now = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(now.st_mode) and now.st_size < 10**9 else now.st_size
        found[str(path)] = now.st_mode, now.st_mtime_ns, data if stat.S_ISREG(now.st_mode) else None
    return found


@contextlib.contextmanager
def view(folder, way, written=()):
    """A view of `folder` in one of the ways, and a function that runs a program in it."""
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        if way == "links":
            found = stack.enter_context(Links.of(folder, scratch, written, REASON))
        else:
            found = Overlay.of(folder, scratch)

        def run(program, layer="layer", moved=False, code=0, **options):
            start = found.start(scratch / layer, "train.py", moved=moved)
            command = [*start.before, *ALONE, "-c", program, str(start.folder)]
            command = without("root", *command) if way == "user" else command
            environment = {**os.environ, "TMPDIR": f"{scratch}/t"}
            done = subprocess.run(
                command, cwd=start.folder, env=environment, capture_output=True, text=True, **options
            )
            assert done.returncode == code, done.stderr
            return done.stdout.strip()

        yield found, run


ways = pytest.mark.parametrize(
    "way", [pytest.param("root", marks=overlaid), pytest.param("user", marks=overlaid), "links"]
)


@ways
def test_nothing_of_what_a_script_does_to_the_folder_reaches_it(project, way):
    """Overwritten, appended to, removed, renamed, chmodded, cut: bytes, modes and times are as before, and seen changed."""
    before = content(project)
    with view(project, way) as (_, run):
        run(ATTACK)
        assert run(SEES) == "new False [] ['b.txt']"  # the next process of the run goes on there
        assert content(project) == before
        with pytest.raises(AssertionError, match=r"made\.txt"):
            run(SEES, layer="other run")  # of another run there is nothing to be seen
    assert content(project) == before


def test_the_attack_does_change_a_folder_without_a_view(project):
    """Negative control: the same program in the folder itself changes it, everywhere."""
    before = content(project)
    subprocess.run([*ALONE, "-c", ATTACK, str(project)], check=True)
    after = content(project)
    changed = {os.path.relpath(path, project) for path in before if after.get(path) != before[path]}
    assert {"best.pt", "metrics.csv", "old.txt", "mode.txt", "time.txt", "short.txt"} <= changed
    assert {"runs/x/a.txt", "runs/through.txt", "gone/deep", "absolute.txt"} <= changed


@ways
def test_a_killed_process_leaves_its_files_to_the_next_one(project, way):
    """What was written before a SIGKILL is there when the run is started again."""
    program = "import os, signal; open('made.txt', 'w').write('kept'); os.kill(os.getpid(), signal.SIGKILL)"
    with view(project, way) as (_, run):
        run(program, code=-signal.SIGKILL)
        assert run("print(open('made.txt').read())") == "kept"
    assert not (project / "made.txt").exists()


@ways
def test_another_path_shows_the_same_view(project, way):
    """Moved, the script has another working directory; ../data and the files are there, and own paths are safe, too."""
    program = f"""
import os
assert os.getcwd() != {str(project)!r} and os.listdir("../data") == [] and os.path.exists("../../above.txt")
open("made.txt", "w").write("by the moved path")
print(os.path.basename(os.getcwd()))
"""
    before = content(project)
    with view(project, way) as (_, run):
        assert run(program, moved=True) == project.name
        if way != "links":
            run(f"open({str(project / 'best.pt')!r}, 'a').write('by the own path')", moved=True)
    assert content(project) == before


@overlaid
@pytest.mark.parametrize("way", ["root", "user"])
def test_an_overlay_is_at_the_folders_own_path(project, way):
    """Working directory and absolute paths are the user's; links would be elsewhere (negative control)."""
    program = (
        f"import os; print(os.getcwd() == {str(project)!r} and os.path.exists({str(project / 'best.pt')!r}))"
    )
    with view(project, way) as (_, run):
        assert run(program) == "True"
    with view(project, "links") as (_, run):
        assert run(program) == "False"


@pytest.fixture(scope="module")
def large():
    """A file of 100 GB, which is one hole, beside 50,000 small ones in 50 folders; in memory, where removing is quick."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else "/tmp") as folder:
        with open(f"{folder}/data.bin", "wb") as file:
            file.truncate(100 * 10**9)
        for number in range(50):
            os.mkdir(f"{folder}/d{number}")
            for one in range(1000):
                with open(f"{folder}/d{number}/{one}.txt", "w") as file:
                    file.write("x")
        yield Path(folder)


@pytest.mark.slow
@ways
@pytest.mark.timeout(600)
def test_a_large_folder_starts_at_once(large, way, capsys):
    """100 GB and 50,000 files: the script's first line runs after about a second (measured and printed), at most ten."""
    program = """
import os
assert os.path.getsize("data.bin") == 100 * 10**9 and len(os.listdir("d7")) == 1000
print(open("d7/999.txt").read())
"""
    begin = time.monotonic()
    with view(large, way) as (_, run):
        assert run(program) == "x"
        seconds = time.monotonic() - begin
    with capsys.disabled():
        print(f"\n100 GB and 50,000 files by {way}: {seconds:.2f} s to the end of the first process")
    assert seconds < (10 if way != "links" else 60)


@pytest.fixture
def elsewhere():
    """A folder on another device."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


@overlaid
def test_only_an_overlay_of_a_user_refuses_to_rename_a_folder_and_the_launcher_renames_it(project, elsewhere):
    """`os.rename` of a folder that was there works by copying; an error between true devices stays one."""
    program = "import os; os.rename('runs', 'moved'); print(os.listdir('moved/x'))"
    copying = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from samebits.audit._child.variations import rename_folders_by_copy\n"
        "context = rename_folders_by_copy(); context.__enter__()\n"
    )
    with view(project, "user") as (_, run):
        with pytest.raises(AssertionError, match="cross-device"):
            run(program)  # negative control
        assert run(copying + program) == "['a.txt']"
        with pytest.raises(AssertionError, match="cross-device"):
            run(copying + f"import os; os.rename('gone', {elsewhere + '/x'!r})")
    assert (project / "runs" / "x" / "a.txt").exists()


@overlaid
@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_a_mount_below_the_folder_is_seen_and_protected_too(project):
    """A data set that is mounted into the folder is there, and what is written to it stays in the view."""
    program = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from samebits.audit._verify.working_folder import Overlay
import ctypes, subprocess
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0
libc.mount(b"none", b"/", None, ctypes.c_ulong(0x44000), None)
user, scratch = Path(sys.argv[1]), Path(sys.argv[3])
inner = os.fsencode(user / "runs/x")
assert libc.mount(b"tmpfs", inner, b"tmpfs", ctypes.c_ulong(0), None) == 0
(user / "runs/x/set.bin").write_text("data")
start = Overlay.of(user, scratch).start(scratch / "layer", "x", moved=False)
code = "print(open('runs/x/set.bin').read()); open('runs/x/set.bin', 'w').write('new'); print(open('runs/x/set.bin').read())"
print(subprocess.check_output([*start.before, sys.executable, "-c", code], text=True).split(), (user / "runs/x/set.bin").read_text())
"""
    with scratch_folder() as scratch:
        source = Path(__file__).parents[2] / "src"
        command = [sys.executable, "-c", program, str(project), str(source), str(scratch)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "['data', 'new'] data", done.stdout + done.stderr


def test_environments_are_linked_and_work_where_nothing_can_be_mounted(short):
    """A folder with a pyvenv.cfg, whatever its name, is a link: nothing of it is copied, its Python starts."""
    project = short / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv-peers"], check=True)
    with view(project, "links") as (links, run):
        assert not any(name.startswith(".venv") for name in [*links.copied, *links.linked])
        assert run(
            "import subprocess; print(subprocess.check_output(['.venv-peers/bin/python', '-c', 'print(7)']).decode())"
        )
        assert run("import os; print(os.path.islink('.venv-peers'))") == "True"


@pytest.fixture
def weighty(project):
    """The project, with more files than are copied: weights of 150 MB, and a data set of 100 MB."""
    for name, size in (("weights.bin", 150), ("data.bin", 100)):
        with open(project / name, "wb") as file:
            file.truncate(size * 10**6)
    return project


WRITES = {
    "open": "open('weights.bin', 'r+b').write(b'new')",
    "truncate": "import os; os.truncate('weights.bin', 5)",
    "C": "import ctypes; ctypes.CDLL(None).creat(b'weights.bin', 0o644)",
    "a shell": "import os; os.system('echo new > weights.bin')",
}


@pytest.mark.parametrize("how", WRITES)
def test_who_writes_through_a_link_is_stopped_and_gets_a_copy(weighty, how):
    """The kernel holds the write until the process is killed: the file is as before; with a copy the same write works."""
    before = content(weighty)
    with view(weighty, "links") as (links, run):
        assert {"weights.bin", "data.bin"} == set(links.linked)
        run("open('data.bin', 'rb').read(9)")  # negative control: reading is no writing
        links.check()
        run(WRITES[how], code=-signal.SIGKILL)
        assert content(weighty) == before
        with pytest.raises(WrittenError) as found:
            links.check()
        assert found.value.files == {"weights.bin"}
    with view(weighty, "links", found.value.files) as (links, run):
        run(WRITES[how])
        links.check()
    assert content(weighty) == before


def test_a_mode_that_was_changed_through_a_link_is_put_back(weighty):
    """chmod and utime go through a link: both are undone, and the file is copied next time."""
    before = content(weighty)
    with view(weighty, "links") as (links, run):
        run("import os; os.chmod('weights.bin', 0o600); os.utime('data.bin', (1, 1))")
        assert content(weighty) != before
        with pytest.raises(WrittenError) as found:
            links.check()
        assert found.value.files == {"weights.bin", "data.bin"}
    assert content(weighty) == before


def test_neither_overlay_nor_links_is_one_clear_line(weighty):
    """A large file that somebody has open for writing can be neither linked safely nor copied: sizes, reason, cure."""
    with open(weighty / "weights.bin", "ab") as file, scratch_folder() as scratch:
        file.truncate(MOST_BYTES + 1)
        with pytest.raises(VerifyError) as error, Links.of(weighty, scratch, (), REASON):
            pass
        told = str(error.value)
        assert "\n" not in told
        assert all(word in told for word in ("200 MB", str(weighty), REASON, "--in-place", "smaller folder"))
    with scratch_folder() as scratch, Links.of(weighty, scratch, (), REASON) as links:
        assert "weights.bin" in links.linked  # negative control: closed, it can be linked
    assert FEW_BYTES < MOST_BYTES


def test_a_small_folder_is_copied_as_a_whole_where_nothing_can_be_mounted(project):
    """No file of it is a link."""
    with view(project, "links") as (links, run):
        assert links.linked == {}
        assert run("import os; print(os.path.islink('best.pt'))") == "False"


def test_links_of_the_tree_lead_into_the_tree_or_to_the_very_thing(project):
    """Relative or absolute: inside leads to the copy, outside to where it led; a dangling one stays one."""
    (project / "inner").symlink_to("runs/x")
    (project / "outer").symlink_to("../data")
    (project / "nothing").symlink_to("nowhere")
    with view(project, "links") as (links, run):
        copy = links.start(links.scratch / "layer", "train.py", moved=False).folder
        real = {name: os.path.realpath(copy / name) for name in ("inner", "link", "outer")}
        assert real["inner"] == str(copy / "runs" / "x") and real["link"] == str(copy / "runs")
        assert real["outer"] == str(project.parent / "data")
        assert os.readlink(copy / "nothing") == "nowhere"


@overlaid
def test_the_user_may_go_on_editing(project):
    """Programs are seen as they were when the check began; data, which is not copied, is not (negative control)."""
    (project / "train.py").write_text("first")
    with view(project, "root") as (_, run):
        (project / "train.py").write_text("edited")
        (project / "metrics.csv").write_text("edited")
        assert run("print(open('train.py').read(), open('metrics.csv').read())") == "first edited"


@overlaid
def test_a_folder_for_temporary_files_within_the_folder_is_not_used(project, monkeypatch):
    """With TMPDIR in the folder itself the scratch is elsewhere; who works in / is told what to do."""
    monkeypatch.setattr(tempfile, "tempdir", str(project / "runs"))
    with scratch_folder() as scratch:
        pass
    inside = scratch.is_relative_to(project)
    with scratch_folder(outside=project) as scratch:
        assert not scratch.is_relative_to(project)
    assert inside or len(str(project / "runs")) > 40  # negative control
    with pytest.raises(VerifyError, match="script's own folder"), scratch_folder(outside=Path("/")):
        pass


TRAINS = """
import os, sys
import torch
import helper
torch.manual_seed(SEED)
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
torch.save(model.state_dict(), "best.pt")
open("link/through.txt", "w").write("new")
if os.path.exists("weights.bin"):
    torch.save(model.state_dict(), "weights.bin")
"""


@pytest.fixture
def trained(project):
    """The project with a script that trains and writes over what is there."""
    import torch

    torch.save(torch.ones(8, 6), project.parent / "data" / "x.pt")
    (project / "train.py").write_text(TRAINS.replace("SEED", "0"))
    (project / "helper.py").touch()
    return project


def verify(folder, *words, way="root"):
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "run-again",
        "--jobs",
        "1",
        *words,
    ]
    command = command if way == "root" else without({"user": "root"}.get(way, "overlay"), *command)
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280)


def overlays():
    """All overlay mounts that this process sees."""
    with open("/proc/mounts") as file:
        return [line for line in file if " overlay " in line]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "absolute"),
    [
        pytest.param("root", False, marks=overlaid),
        pytest.param("user", True, marks=overlaid),
        ("links", False),
        ("links", True),
    ],
)
def test_what_the_script_writes_leaves_the_users_files_alone(trained, short, monkeypatch, way, absolute):
    """The whole command: files are byte for byte as before, ../data is found, no mount and no folder is left."""
    temporary = short / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    if way == "links":  # more than is copied: the script saves over a file that is linked first
        for name in ("weights.bin", "data.bin"):
            with open(trained / name, "wb") as file:
                file.truncate(150 * 10**6)
    before, mounts = content(trained), overlays()
    done = verify(trained, str(trained / "train.py") if absolute else "train.py", way=way)
    assert done.returncode == 0, done.stdout + done.stderr
    assert content(trained) == before
    assert ("begins again, with copies of what the script writes: weights.bin" in done.stderr) == (
        way == "links"
    )
    assert not list(temporary.glob("samebits-*")) and overlays() == mounts


@pytest.mark.slow
def test_in_place_overwrites_them_and_says_so(trained):
    """Negative control: with --in-place the same script does change the same files."""
    before = content(trained)
    done = verify(trained, "--in-place", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    changed = {os.path.basename(path) for path, data in content(trained).items() if before.get(path) != data}
    assert {"best.pt", "metrics.csv", "through.txt"} <= changed
    assert "were overwritten" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("root", marks=overlaid), "links"])
def test_a_script_that_depends_on_where_it_is_differs_when_it_is_run_again(trained, way):
    """A seed made of the script's own path gives other bits in "run again", as it would in another clone."""
    seed = "sum(os.path.abspath(__file__).encode())"
    (trained / "train.py").write_text(TRAINS.replace("SEED", seed))
    done = verify(trained, "train.py", way=way)
    assert done.returncode == 1 and "NOT REPRODUCIBLE: run again" in done.stdout, done.stdout + done.stderr
