"""The commands `run`, `diff`, `env` as processes."""

import json
import os
import signal
import subprocess
import sys

import pytest

TRAIN = """
import os, random, sys
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4) * (2 if step == 2 and "other" in sys.argv else 1)
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(sys.argv[1:], os.environ["PYTHONHASHSEED"], sys.flags.hash_randomization, list({"a", "b", "c", "d"}))
"""


def samebits(*words, cwd, **environment):
    """The finished process `samebits WORDS`; a fixed hash seed spares it starting itself again."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", **environment}
    command = [sys.executable, "-m", "samebits", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=280)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three recorded runs: two equal ones, and one whose third batch is another; and what the first two printed."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAIN)
    cases = (("a", ["--seed", "7"], "random"), ("b", ["--seed", "7"], "0"), ("c", ["other"], "0"))
    runs = [
        samebits("run", "--record", name, "train.py", *more, cwd=folder, PYTHONHASHSEED=hash_seed)
        for name, more, hash_seed in cases
    ]
    assert [run.returncode for run in runs] == [0, 0, 0], runs[0].stderr
    return folder, runs


@pytest.mark.slow
def test_run_fixes_the_hash_seed_and_hands_on_everything_behind_the_script(recorded):
    """The script sees its own `--seed`, PYTHONHASHSEED=0, and the same order of a set in each process."""
    _, (first, second, _) = recorded
    assert first.stdout.startswith("['--seed', '7'] 0 0 ")
    assert first.stdout == second.stdout


@pytest.mark.slow
def test_run_seeds_a_script_that_seeds_nothing(recorded):
    """Two records of the same unseeded script end with the same digest; the last line holds it."""
    folder, _ = recorded
    ends = [json.loads((folder / name / "record.jsonl").read_text().splitlines()[-1]) for name in "ab"]
    assert ends[0]["final"] == ends[1]["final"] is not None


@pytest.mark.slow
def test_diff_says_equal_or_the_first_step_and_component(recorded):
    """Exit status 0, 1, and 2 where there is no record; the first two say how many steps were compared."""
    folder, _ = recorded
    equal, other, none = (samebits("diff", "a", name, cwd=folder) for name in ("b", "c", "none"))
    assert (equal.returncode, equal.stdout) == (0, "equal: 4 steps compared, and the model at the end\n")
    assert other.returncode == 1 and other.stdout.startswith("step 2 ") and "batch" in other.stdout
    assert other.stdout.endswith("[4 steps compared]\n")
    assert none.returncode == 2 and len(none.stderr.splitlines()) == 1


@pytest.mark.slow
def test_two_failed_runs_are_not_equal(tmp_path):
    """Both raise behind their last step: status 2, with the error and how many steps were compared."""
    (tmp_path / "train.py").write_text(f"{TRAIN}\nraise ValueError('no')\n")
    for name in "ab":
        assert samebits("run", "--record", name, "train.py", cwd=tmp_path).returncode == 1
    found = samebits("diff", "a", "b", cwd=tmp_path)
    assert found.returncode == 2 and "ended with ValueError: no; " in found.stdout
    assert "no difference in the 4 steps compared" in found.stdout


BY_HAND = TRAIN.replace(
    "optimizer.zero_grad(); loss.backward(); optimizer.step()",
    "model.zero_grad(); loss.backward(); [p.data.add_(p.grad, alpha=-0.1) for p in model.parameters()]",
)


WITH_RUN = """
import sys
import torch, samebits
samebits.set_random_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
note = sys.argv[1]
with samebits.Run(None, model=model, optimizer=optimizer) as run:
    for step, x in run.steps([torch.ones(2, 4)] * 3, epochs=1):
        loss = model(x).square().mean() * (2 if note == "other" and step.number == 2 else 1)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
print(note)
"""


@pytest.mark.slow
def test_what_is_read_behind_the_loop_is_told_so(tmp_path):
    """An argument that only a last line prints differs in no step: the line says who reads it. What a body reads: it does not."""
    script = WITH_RUN.replace(' * (2 if note == "other" and step.number == 2 else 1)', "")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "reads.py").write_text(WITH_RUN)
    for name, *words in (
        ("a", "train.py", "x"),
        ("b", "train.py", "y"),
        ("c", "reads.py", "x"),
        ("d", "reads.py", "y"),
    ):
        ran = samebits("run", "--record", name, *words, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
    behind, inside = (samebits("diff", *pair, cwd=tmp_path) for pair in ("ab", "cd"))
    assert "local variable `note` differs (read after the loop only) [3 steps compared]" in behind.stdout
    assert "local variable `note` differs [3 steps compared]" in inside.stdout


@pytest.mark.slow
def test_training_by_hand_has_steps_to_compare(tmp_path):
    """`p.data.add_` instead of an optimizer: four steps, and a difference is told at its step."""
    (tmp_path / "train.py").write_text(BY_HAND)
    for name, words in (("a", []), ("c", ["other"])):
        assert samebits("run", "--record", name, "train.py", *words, cwd=tmp_path).returncode == 0
    other = samebits("diff", "a", "c", cwd=tmp_path)
    assert other.stdout.endswith("[4 steps compared]\n")
    assert other.returncode == 1 and other.stdout.startswith("step 2 ") and "batch" in other.stdout


@pytest.mark.slow
def test_a_folder_holds_the_records_of_one_command(recorded):
    """Other arguments or another script are refused before they run; the same command may add its record."""
    folder, _ = recorded
    (folder / "plain.py").write_text("open('ran', 'w')")
    for words in (["train.py"], ["plain.py", "other"]):
        refused = samebits("run", "--record", "c", *words, cwd=folder)
        assert (
            refused.returncode == 2 and "already holds a record of train.py other. Choose" in refused.stderr
        )
    assert not (folder / "ran").exists() and not (folder / "c" / "record.1.jsonl").exists()
    assert samebits("run", "--record", "c", "train.py", "other", cwd=folder).returncode == 0
    assert (folder / "c" / "record.1.jsonl").exists()  # negative control


@pytest.mark.slow
def test_a_record_without_a_step_is_warned_of(tmp_path):
    """A run that has finished trains nothing: its second record is empty, and one line says so; its first is not."""
    (tmp_path / "train.py").write_text(
        "import torch, samebits\n"
        "w = torch.nn.Linear(2, 1)\n"
        "with samebits.Run('run', w=w) as run:\n"
        "    for step, x in run.steps([torch.ones(1, 2)] * 3):\n"
        "        w(x)\n"
    )
    first, second = (samebits("run", "--record", name, "train.py", cwd=tmp_path) for name in "ab")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "b holds no step" in second.stderr and "holds no step" not in first.stderr


@pytest.mark.slow
def test_the_exit_status_of_the_script_is_that_of_run(tmp_path):
    """sys.exit(9), an exception (1, with the script's own traceback), a missing script (2, one line)."""
    (tmp_path / "nine.py").write_text("raise SystemExit(9)")
    (tmp_path / "error.py").write_text("def f():\n    raise ValueError('no')\nf()")
    assert samebits("run", "nine.py", cwd=tmp_path).returncode == 9
    error = samebits("run", "error.py", cwd=tmp_path)
    assert error.returncode == 1 and error.stderr.splitlines()[-1] == "ValueError: no"
    missing = samebits("run", "missing.py", cwd=tmp_path)
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1


def test_what_run_is_given_wrongly_is_told_in_the_words_of_the_command(tmp_path):
    """A level that there is not, and a folder for a script: the option, the choice; nothing runs."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    for words, said in (
        (
            ["--record-level", "all", "train.py"],
            "samebits: run: --record-level 'all': choose from loss, state.\n",
        ),
        (["."], "samebits: run: . is a folder. Name the script in it, such as ./train.py.\n"),
    ):
        refused = samebits("run", *words, cwd=tmp_path)
        assert (refused.returncode, refused.stderr) == (2, said)
    assert not (tmp_path / "ran").exists()
    assert samebits("run", "--record-level", "loss", "train.py", cwd=tmp_path).returncode == 0  # control


@pytest.mark.slow
def test_sigterm_passes_through_as_75(tmp_path):
    """A `Run` under `samebits run` commits at SIGTERM, and its exit status 75 is the command's."""
    (tmp_path / "train.py").write_text(
        "import time, torch, samebits\n"
        "model = torch.nn.Linear(2, 1)\n"
        "with samebits.Run('run', model=model) as run:\n"
        "    for step, _ in run.steps([1, 2], epochs=1000):\n"
        "        print('step', flush=True)\n"
        "        time.sleep(0.1)\n"
    )
    command = [sys.executable, "-m", "samebits", "run", "train.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline() == "step\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 75


@pytest.mark.slow
def test_diff_writes_its_result_as_json(recorded):
    """`--json -` prints JSON alone, equal or not; a file stands beside the sentence; the exit status is the same."""
    folder, _ = recorded
    equal, other = (samebits("diff", "--json", "-", "a", name, cwd=folder) for name in "bc")
    found = json.loads(equal.stdout)
    assert (equal.returncode, found["schema"], found["exit"]) == (0, "samebits.diff/1", 0)
    assert found["difference"] is None and found["steps_compared"] == 4
    found = json.loads(other.stdout)
    assert (other.returncode, found["exit"], found["difference"]["step"]) == (1, 1, 2)
    beside = samebits("diff", "--json", "d.json", "a", "c", cwd=folder)
    assert beside.stdout.strip() == found["result"]
    assert json.loads((folder / "d.json").read_text()) == found
    refused = samebits("diff", "--json", "no/d.json", "a", "c", cwd=folder)
    assert (refused.returncode, refused.stdout) == (2, "") and "there is no folder" in refused.stderr


@pytest.mark.slow
def test_env_and_version_print(tmp_path):
    """The fingerprint is JSON that names torch, and so is what --json writes; --version is one line."""
    found = json.loads(samebits("env", cwd=tmp_path).stdout)
    assert found["packages"]["torch"].startswith("2.")
    assert json.loads(samebits("env", "--json", "-", cwd=tmp_path).stdout) == found
    assert samebits("env", "--json", "env.json", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "env.json").read_text()) == found
    assert samebits("--version", cwd=tmp_path).stdout.startswith("samebits 0.")
