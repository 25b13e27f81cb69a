"""Every commit says where it was made; on a resume what differs stops the run, by name, or is told and written down."""

import json
import os
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import samebits
from samebits.checkpoint._store import CommitStore
from samebits.determinism._environment import LIBRARY_VARIABLES, _cpu_model
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.train._environment_check import KNOWN, Environment

CLEAN = {name: value for name, value in os.environ.items() if name not in LIBRARY_VARIABLES}


def train(run_dir, lr=0.1, stop=None, momentum=0.9, epochs=2, **options):
    samebits.set_random_seed(1)
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    with samebits.Run(run_dir, model=model, opt=opt, scheduler=scheduler, **options) as run:
        for step, x in run.steps([torch.ones(3, 2)] * 3, epochs=epochs):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
            if step.ends_epoch:
                scheduler.step()
    return model.weight.detach().clone()


def newest(run_dir):
    return CommitStore(run_dir).newest()[0].environment


@pytest.fixture
def committed(tmp_path):
    train(tmp_path / "r", epochs=1)
    return tmp_path / "r"


def test_every_commit_holds_the_environment(committed):
    """Versions, CPU, GPUs, threads, flags, world size, script and the optimizers' first hyperparameters."""
    held = newest(committed)
    assert held["packages"].keys() >= {"torch", "numpy", "samebits", "llvmlite"} and held["world_size"] == 1
    assert {
        "python",
        "platform",
        "cpu",
        "gpus",
        "threads",
        "op_determinism",
        "flags",
        "scripts",
    } <= held.keys()
    assert held["optimizers"]["opt"][0]["lr"] == 0.1 and held["optimizers"]["opt"][0]["momentum"] == 0.9
    assert held["flags"]["default_dtype"] == "float32"


CHANGES = {
    "torch": ("packages", "torch"),
    "numpy": ("packages", "numpy"),
    "samebits": ("packages", "samebits"),
    "llvmlite": ("packages", "llvmlite"),
    "python": ("python",),
    "arithmetic_bits": ("arithmetic_bits",),
    "cpu": ("cpu",),
    "gpu": ("gpus",),
    "flags": ("flags", "float32_matmul_precision"),
}


def pretend(committed, path, value):
    """What a commit of another machine says."""
    manifest = CommitStore(committed).newest()[0]
    now = json.loads(json.dumps(manifest.environment))
    inner = now
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value

    class Other:
        environment, step = now, manifest.step

    return Other


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_stops_the_resume_and_is_accepted_by_its_name(committed, name):
    """Another version, CPU, GPU or flag is refused with what it was and is; its name, and no other, accepts it."""
    before = pretend(committed, CHANGES[name], "another")
    here = Environment.current({}, 1)
    with pytest.raises(RunMismatchError, match=rf"another then, .* now \('{name}'\)") as caught:
        here.check(before, "the run", {"threads"})
    assert f"allow_changes={sorted({name, 'threads'})}" in str(caught.value)
    here.check(before, "the run", {name})


def test_all_changes_are_listed_at_once(committed):
    """One error names everything that differs."""
    before = pretend(committed, ("cpu",), "Z80")
    before.environment["packages"]["torch"] = "0.1"
    with pytest.raises(
        RunMismatchError, match=r"(?s)cpu: Z80 then.*packages.torch: 0.1 then.*\['cpu', 'torch'\]"
    ):
        Environment.current({}, 1).check(before, "the run", frozenset())


def test_under_machine_invariance_the_cpu_may_change(tmp_path):
    """A commit of the mode resumes on another CPU of the same platform; one of thread invariance does not (the control)."""
    for setting, message in (("machines", None), ("threads", "cpu: Z80 then")):
        with samebits.enable_op_determinism(across=setting):
            train(tmp_path / setting, epochs=1)
            before = pretend(tmp_path / setting, ("cpu",), "Z80")
            before.environment["cpu_capability"] = "AVX2"
            before.environment["threads"] = 64
            with pytest.raises(RunMismatchError, match=message) if message else nullcontext():
                Environment.current({}, 1).check(before, "the run", frozenset())
            before.environment["platform"] = "Linux-aarch64"
            with pytest.raises(RunMismatchError, match="Linux-aarch64 then"):
                Environment.current({}, 1).check(before, "the run", frozenset({"cpu"}))
    with pytest.raises(RunMismatchError, match="cpu: Z80 then"):  # here the mode is off
        Environment.current({}, 1).check(
            pretend(tmp_path / "machines", ("cpu",), "Z80"), "the run", frozenset()
        )


@pytest.mark.parametrize("across", ["runs", "threads", "machines"])
def test_another_c_library_is_refused_across_machines_and_else_warned_of(tmp_path, across):
    """Its `math` functions may round otherwise: an error by name where every machine is to give the same bits, a warning elsewhere."""
    with samebits.enable_op_determinism(across=across):
        train(tmp_path, epochs=1)
        here, before = Environment.current({}, 1), pretend(tmp_path, ("libc",), "glibc 2.17")
        judged = pytest.raises if across == "machines" else pytest.warns
        kind = RunMismatchError if across == "machines" else UserWarning
        with judged(kind, match="glibc 2.17 then, glibc .* now"):
            here.check(before, "the run", frozenset())
        # negative controls: accepted by name, and a commit of before that has no such entry
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            here.check(before, "the run", frozenset({"libc"}))
            del before.environment["libc"]
            here.check(before, "the run", frozenset())
            here.check(pretend(tmp_path, ("libc",), here.fingerprint["libc"]), "the run", frozenset())


def test_a_flag_that_really_changed_is_refused(committed):
    """Another float32 precision than the commit's stops the real resume, and is accepted by name."""
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(RunMismatchError, match="float32_matmul_precision: highest then, high now"):
            train(committed)
        train(committed, allow_changes=["flags"])
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("given", [["tourch"], "torch", ["cpu", "disk"]])
def test_an_unknown_name_lists_the_known(tmp_path, given):
    """A name that is none, or a string for a list, is an error that lists the names."""
    with pytest.raises(InvalidArgumentError, match=", ".join(KNOWN)):
        samebits.Run(tmp_path, allow_changes=given)


@pytest.mark.parametrize("given", [["world_size"], "world_size", ["torch", "world_size"]])
def test_another_world_size_cannot_be_allowed(tmp_path, given):
    """allow_changes=["world_size"] is refused with the reason and the way out, before a folder is made."""
    with pytest.raises(InvalidArgumentError, match="as many processes as it began with.*load_weights"):
        samebits.Run(tmp_path / "r", allow_changes=given)
    assert "world_size" not in KNOWN and not (tmp_path / "r").exists()


def test_threads_are_put_back_unless_allowed(committed, forked, capfd):
    """Another number of threads is put back and told; allow_changes=["threads"] keeps the new one."""

    def resumed(**options):
        torch.set_num_threads(3)
        train(committed, **options)
        return torch.get_num_threads()

    began = newest(committed)["threads"]
    assert forked(lambda: resumed(allow_changes=["threads"])).value == 3 != began
    assert "set_num_threads" not in capfd.readouterr().err
    train(committed.with_name("s"), epochs=1)
    committed = committed.with_name("s")
    assert forked(resumed).value == began
    assert f"the run began with {began} threads" in capfd.readouterr().err


def test_threads_that_cannot_be_put_back_stop_the_run(monkeypatch, committed):
    """Where the number cannot be had and bits depend on it, the run stops; across threads it goes on."""
    before = pretend(committed, ("threads",), 7)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # as where a process may not have more
    with pytest.raises(RunMismatchError, match="7 intra-op threads.*across.*'threads'"):
        Environment.current({}, 1).resume(before, "the run", frozenset())
    Environment.current({}, 1).resume(before, "the run", {"threads"})
    with samebits.enable_op_determinism(across="threads"):
        Environment.current({}, 1).resume(before, "the run", {"flags"})


SCRIPT = """
import sys, torch, samebits, part
samebits.set_random_seed(1)
torch.set_num_threads(1)
with samebits.Run(sys.argv[1], allow_changes=sys.argv[3:]) as run:
    for step, x in run.steps([1, 2, 3], epochs=int(sys.argv[2])):
        pass
"""


@pytest.mark.slow
def test_a_changed_script_is_told_and_written_down(tmp_path):
    """The script, or a module of the user's beside it, changed between two starts: a warning, and the step in the commits."""

    def start(epochs, *allowed):
        (tmp_path / "main.py").write_text(SCRIPT)
        command = [sys.executable, "main.py", "r", str(epochs), *allowed]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stderr

    (tmp_path / "part.py").write_text("")
    start(1)
    assert newest(tmp_path / "r")["scripts"][0]["files"].keys() == {"main.py", "part.py"}
    assert "changed since" not in start(2)
    (tmp_path / "part.py").write_text("answer = 42\n")
    assert "part.py changed since" in start(3)
    assert "changed since" not in start(4)
    (tmp_path / "part.py").write_text("answer = 43\n")
    assert "changed since" not in start(5, "script")
    assert [entry["step"] for entry in newest(tmp_path / "r")["scripts"]] == [0, 6, 12]


PROGRAM = """
import sys, torch, samebits
samebits.set_random_seed(1)
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), float(sys.argv[2]))
with samebits.Run("r", model=model, opt=opt) as run:
    for step, x in run.steps([torch.ones(3, 2)] * 3, epochs=int(sys.argv[1])):
        opt.zero_grad()
        LOSS.backward()
        opt.step()
"""


@pytest.mark.slow
def test_another_script_is_a_warning_and_another_rate_an_error(tmp_path):
    """Another script with another loss in the same run directory: exit 0, a warning that names it. Another rate: exit 1."""

    def start(name, loss, *words):
        (tmp_path / name).write_text(PROGRAM.replace("LOSS", loss))
        command = [sys.executable, name, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    square, absolute = "model(x).square().mean()", "model(x).abs().mean()"
    assert start("train.py", square, "1", "0.1").returncode == 0
    other = start("other.py", absolute, "2", "0.1")
    assert other.returncode == 0 and "train.py is not used any more since" in other.stderr
    refused = start("other.py", absolute, "3", "0.05")
    assert refused.returncode == 1
    assert "RunMismatchError: " in refused.stderr and "begun with other hyperparameters" in refused.stderr
    assert "opt.lr: 0.1 in the commit, 0.05 here" in refused.stderr
    assert CommitStore(tmp_path / "r").newest()[0].step == 6
    assert "UserWarning" not in start("other.py", absolute, "3", "0.1").stderr  # negative control


PER_BACKEND = """
import torch, samebits
from samebits.determinism._environment import _cuda_precisions, environment_fingerprint
torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch has no one word for it then, and raises
print(environment_fingerprint()["flags"]["float32_matmul_precision"])
before = _cuda_precisions()
torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
after = _cuda_precisions()
print(*(name for name in after if after[name] != before[name]))
"""


def test_a_precision_of_each_backend_is_told(python):
    """A run where TensorFloat-32 was set by torch's newer names has a fingerprint; on a GPU cuDNN's and 16-bit sums are in it."""
    words, changed = python(PER_BACKEND).stdout.splitlines()
    assert words.startswith("cuda tf32, mkldnn ")
    assert changed.split() == [
        "cudnn_conv_fp32_precision", "cudnn_rnn_fp32_precision", "bf16_reduced_precision_reduction"
    ]  # fmt: skip


RESUMED = """
import sys
import torch
import samebits
samebits.set_random_seed(1)
torch.set_flush_denormal("flush" in sys.argv)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with samebits.enable_op_determinism("machines" in sys.argv, across="machines"):
    with samebits.Run("r", model=model, optimizer=optimizer) as run:
        for step, x in run.steps([torch.ones(3, 64)] * 2, epochs=int(sys.argv[1])):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
"""


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("variables", "words", "told"),
    [
        ({"MKL_CBWR": "COMPATIBLE"}, "", r"libraries.MKL_CBWR: \w+ then, COMPATIBLE now ('libraries')"),
        pytest.param(
            {"ONEDNN_MAX_CPU_ISA": "SSE41"},
            "",
            "ONEDNN_MAX_CPU_ISA: None then, SSE41 now",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
            "",
            "MKL_ENABLE_INSTRUCTIONS: None then, AVX2 now",
            marks=pytest.mark.slow,
        ),
        pytest.param({"OMP_DYNAMIC": "TRUE"}, "", "OMP_DYNAMIC: None then, TRUE now", marks=pytest.mark.slow),
        ({}, "flush", "flags.flush_denormal: None then, True now"),
        pytest.param({"MKL_CBWR": "COMPATIBLE"}, "machines", None, marks=pytest.mark.slow),
        ({"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}, "", None),
    ],
)
def test_a_variable_that_chooses_kernels_is_compared(tmp_path, variables, words, told):
    """A resume under another MKL_CBWR, instruction set or flush-to-zero is refused by name; under the mode, or with one that moves no bits, it runs."""
    (tmp_path / "train.py").write_text(RESUMED)

    def run(epochs, words, **more):
        command = [sys.executable, "train.py", str(epochs), *words.split()]
        env = {**CLEAN, "OMP_NUM_THREADS": "2", **more}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)

    assert run(1, words.replace("flush", "")).returncode == 0
    done = run(2, words, **variables)
    if told is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1 and re.search(re.sub(r"([()])", r"\\\1", told), done.stderr), done.stderr


ADDRESSES = """
import itertools, os, sys
import torch
if "late" in sys.argv:
    torch.ones(64, 64) @ torch.ones(64, 64)
import samebits
samebits.set_random_seed(1)
samebits.enable_op_determinism()
torch.set_num_threads(1)
different = 0
for rows, inner, columns in itertools.product((1, 2, 3, 5, 8), (3, 5, 7, 8, 16, 33), (4, 8, 28, 33)):
    a, b = torch.randn(rows, inner), torch.randn(columns, inner).t()
    places = [torch.empty(16 + a.numel())[i : i + a.numel()].view_as(a).copy_(a) for i in range(16)]
    different += len({(place @ b).numpy().tobytes() for place in places}) > 1
print(different, os.environ.get("MKL_CBWR"))
"""


@pytest.mark.slow
@pytest.mark.skipif("AMD" not in _cpu_model(), reason="MKL's products follow addresses on AMD's CPUs alone")
def test_small_products_do_not_follow_addresses():
    """On AMD no product of 120 shapes has other bits at another address; as MKL chooses (control) some have; where samebits comes too late, it is told."""

    def run(*words, **variables):
        env = {**CLEAN, **variables}
        command = [sys.executable, "-c", ADDRESSES, *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True)

    assert run().stdout.split() == ["0", "AUTO"] and "MKL" not in run().stderr
    assert int(run(MKL_CBWR="").stdout.split()[0]) > 20  # MKL's own choice
    late = run("late")
    assert int(late.stdout.split()[0]) > 20 and "Import samebits before the first product" in late.stderr
