"""The launcher runs a script as Python itself would."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from samebits._context import CheckOverrides, process
from samebits._objects.hashes import of_nested
from samebits.audit._child.launch import _moved_folders
from samebits.audit._child.launch_spec import LaunchSpec
from samebits.audit._first_difference import first_difference
from samebits.audit._record.record_file import read_record
from waiting import is_alive, wait_until

AS_PYTHON = """
import dataclasses, multiprocessing, os, pickle, random, sys
import numpy as np, torch
import neighbour

@dataclasses.dataclass
class Point:
    x: int

def double(value):
    return 2 * value

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
    print(sys.argv, __file__, sys.path[0], __name__, __spec__, sys.modules["__main__"].Point is Point)
    torch.manual_seed(3); np.random.seed(3); random.seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        loss = model(torch.randn(2, 4) * random.random() + np.random.rand()).sum()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item().hex())
    print(torch.rand(1).item().hex(), torch.initial_seed(), torch.get_num_threads())
    open("metrics.csv", "w").close()
    sys.exit(int(sys.argv[1]))
"""


def launch(folder, script, *args, env=None, **spec):
    spec = LaunchSpec(record_dir=str(folder / "record"), **spec).write(folder / "spec.json")
    return run(
        [sys.executable, "-m", "samebits.audit._child.launch", str(spec), str(script), *args], folder, env
    )


def run(command, folder, env=None):
    # Below /tmp, not below the test's own folder: loader workers open sockets there, whose paths have 107 characters.
    with tempfile.TemporaryDirectory(prefix="sb-", dir="/tmp") as short:
        env = {**os.environ, "TMPDIR": short, **(env or {})}
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_a_launched_script_is_the_script_that_python_runs(tmp_path):
    """Equal output, draws, arguments and exit code; pickling and spawned workers find its classes; files are named."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "neighbour.py").touch()
    (tmp_path / "sub" / "script.py").write_text(AS_PYTHON)
    expected = run([sys.executable, "sub/script.py", "7", "--flag"], tmp_path)
    found = launch(tmp_path, "sub/script.py", "7", "--flag")
    assert (found.stdout, found.stderr, found.returncode) == (expected.stdout, expected.stderr, 7)
    record = read_record(tmp_path / "record")
    assert len(record.steps) == 4
    assert record.notes == ["writes outside its run directory: metrics.csv"]


FAILS = """import sys
def main():
    raise {error}
if len(sys.argv) > 1:
    sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, trace.tb_frame.f_code.co_name)
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code"), [("ValueError('no')", 1), ("SystemExit('bye')", 1), ("SystemExit(9)", 9)]
)
def test_a_script_that_fails_fails_as_under_python(tmp_path, error, code):
    """Equal traceback, without a frame of the launcher; equal exit code; the error stands in the record."""
    script = tmp_path / "script.py"
    script.write_text(FAILS.format(error=error))
    expected = run([sys.executable, "script.py"], tmp_path)
    found = launch(tmp_path, "script.py")
    assert (found.stdout, found.stderr, found.returncode) == (expected.stdout, expected.stderr, code)
    if "Value" in error:
        assert read_record(tmp_path / "record").end["error"] == "ValueError: no"
        assert launch(tmp_path, "script.py", "hook").stdout == "hook ValueError <module>\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "cannot run missing.py: no such file or directory"),
        (".", None, "cannot run .: is a folder"),
        ("image.png", b"\x89PNG\r\n\x1a\n\x00", "not a Python program"),
        ("typo.py", b"x = 1\ndef f(:\n", "not a Python program: invalid syntax (line 2)"),
    ],
)
def test_what_is_no_script_is_one_line_and_exit_2(tmp_path, name, content, message):
    """No traceback, one line that says what is wrong with which file."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    found = launch(tmp_path, name)
    assert found.returncode == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


SURROUNDINGS = """
import os, torch
torch.manual_seed(0)
data = torch.utils.data.DataLoader(list(map(float, range(8))), batch_size=4, num_workers=1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in data:
    model(x.float().view(-1, 1)).sum().backward(); optimizer.step()
print(data.num_workers, torch.get_num_threads(), ",".join(os.listdir("many")), torch.are_deterministic_algorithms_enabled())
"""


@pytest.mark.slow
def test_what_is_varied_reaches_the_script_and_the_record_says_so(tmp_path):
    """Workers, threads, the order of listings and the switch are as the spec says; the bits are the same."""
    (tmp_path / "many").mkdir()
    for name in "abc":
        (tmp_path / "many" / name).touch()
    (tmp_path / "script.py").write_text(SURROUNDINGS)
    a = launch(
        tmp_path,
        "script.py",
        env={"OMP_NUM_THREADS": "1"},
        overrides=CheckOverrides(num_workers=0),
        threads=1,
        listing_seed=2,
    )
    b = launch(
        tmp_path,
        "script.py",
        env={"OMP_NUM_THREADS": "2"},
        overrides=CheckOverrides(num_workers=2),
        listing_seed=3,
        switch=True,
        across="threads",
        seed=1,
    )
    (workers_a, threads_a, names_a, on_a), (workers_b, threads_b, names_b, on_b) = (
        a.stdout.split(),
        b.stdout.split(),
    )
    assert (workers_a, threads_a, on_a) == ("0", "1", "False"), a.stderr
    assert (workers_b, threads_b, on_b) == ("2", "2", "True"), b.stderr
    assert names_a.split(",") == names_b.split(",")[::-1]
    records = [read_record(tmp_path / "record" / name) for name in ("record.jsonl", "record.1.jsonl")]
    assert first_difference(*records) is None
    assert [record.end["threads"] for record in records] == [[1, 1], [2, 2]]
    assert [record.end["across"] for record in records] == [None, "threads"]


@pytest.mark.slow
def test_a_script_without_a_run_is_stopped_after_its_steps(tmp_path):
    """stop_after_steps ends a plain script cleanly, with a last line."""
    (tmp_path / "script.py").write_text(SURROUNDINGS)
    found = launch(tmp_path, "script.py", overrides=CheckOverrides(stop_after_steps=1))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert read_record(tmp_path / "record").end["steps"] == 1


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "samebits.audit._child.launch", *sys.argv[1:]])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dies", [True, False])
def test_a_script_dies_with_the_process_that_launched_it_if_asked(tmp_path, dies):
    """SIGKILL of the parent ends the script too; without die_with_parent it lives on (the control)."""
    (tmp_path / "script.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    spec = LaunchSpec(die_with_parent=dies).write(tmp_path / "spec.json")
    command = [sys.executable, "-c", PARENT, str(spec), str(tmp_path / "script.py")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not is_alive(child), 60 if dies else 1) is dies
    if not dies:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("across", ["threads", "machines"])
def test_a_script_that_takes_back_what_the_command_promised_is_refused(tmp_path, across):
    """Its own, weaker enable_op_determinism() ends `run` with 2 and its line; one that is as strong runs (control)."""
    command = [sys.executable, "-m", "samebits", "run", "--across", across, "script.py"]
    as_strong = f'across="{across}"'
    for call, weaker in (
        ("", True),
        ("False", True),
        ('across="threads"', across == "machines"),
        (as_strong, False),
    ):
        (tmp_path / "script.py").write_text(
            f"import samebits\nsamebits.enable_op_determinism({call})\nprint('ran')\n"
        )
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == ((2, "") if weaker else (0, "ran\n")), done.stderr
        line = (
            f"samebits: run: {tmp_path}/script.py:2: enable_op_determinism({call}) takes back --across {across}, "
            "with which the program was started. "
            f"Write enable_op_determinism({as_strong}) there, or remove that call.\n"
        )
        assert done.stderr == (line if weaker else "")


def test_a_text_counts_without_the_folders_that_a_check_moves(tmp_path, monkeypatch):
    """As a value, a key or in a list: equal below the folders of two processes; controls: another name, and no check."""
    root, checked, plain = tmp_path / "root", [], []
    for folder, name in (("a", "x.pt"), ("b", "x-v1.pt"), ("b", "x.pt"), ("b", "../bb/x.pt")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.setenv("PWD", str(tmp_path / folder))
        file = os.path.abspath(name)
        state = {"best": file, file: [1, [file]], "run": f"{root}{file}"}
        state["scratch"] = f"{tmp_path}/{ord(folder)}/t/tmp{folder}1/log"
        for overrides, hashes in (
            (CheckOverrides(folders=_moved_folders(str(root))), checked),
            (CheckOverrides(), plain),
        ):
            monkeypatch.setattr(process, "overrides", overrides)
            hashes.append(of_nested(state))
    assert checked[0] == checked[2] and checked[0] not in (checked[1], checked[3])
    assert plain[0] != plain[2]


PATHS_IN_STATE = """
import os, sys, tempfile
import torch
import samebits
samebits.set_random_seed(0)
samebits.enable_op_determinism()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with samebits.Run("run", model=model, optimizer=optimizer, save=2) as run:
    run.state.files = {"best": [os.path.abspath("best.pt"), tempfile.mkdtemp()], "run": str(run.run_dir)}
    run.state.name = os.getcwd().replace("/", ":") if "name" in sys.argv else ""
    data = [{"x": torch.randn(2, 2), "path": os.path.abspath(f"{i}.png")} for i in range(6)]
    for step, batch in run.steps(data, epochs=2):
        loss = model(batch["x"]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("argument", "status"), [((), 0), (("name",), 1)])
def test_absolute_paths_in_state_and_batch_are_no_difference(tmp_path, argument, status):
    """A script that keeps paths of its folder, of a temporary one and of its run is VERIFIED; control: what is made of a path differs."""
    (tmp_path / "train.py").write_text(PATHS_IN_STATE)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "kill-mid-epoch",
        "train.py",
        *argument,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("NOT REPRODUCIBLE: run again" if status else "VERIFIED")


def test_the_folder_of_another_shell_is_no_folder_that_a_check_moves(tmp_path, monkeypatch):
    """`$PWD` counts where it is the process' folder: what starts a program with `cwd=` leaves its own."""
    moved = _moved_folders(str(tmp_path / "root"))
    assert moved.sub("", f"{os.getcwd()}/data") == "/data"
    monkeypatch.setenv("PWD", str(tmp_path))
    assert _moved_folders(str(tmp_path / "root")).sub("", f"{tmp_path}/data") == f"{tmp_path}/data"
    monkeypatch.chdir(tmp_path)
    assert _moved_folders(str(tmp_path / "root")).sub("", f"{tmp_path}/data") == "/data"
