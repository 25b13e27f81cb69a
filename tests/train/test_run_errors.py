"""Bad input to a run: one clear error, before anything is changed; nothing that was committed is lost."""

import contextlib
import copy
import linecache
import os
import resource
import shutil
import signal

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.checkpoint._store import CommitStore
from samebits.errors import (
    CommitError,
    CorruptCommitError,
    DuplicateNameError,
    EmptyDatasetError,
    InvalidArgumentError,
    NonFiniteLossError,
    PipelineMismatchError,
    RunDirectoryError,
    RunMismatchError,
    UnsavableStateError,
    UnseededError,
)


def train(
    run_dir, *, hidden=4, batch_size=4, seed=1, epochs=2, body=lambda run, step: None, extra=None, **options
):
    samebits.set_random_seed(seed)
    process.overrides = CheckOverrides(commit_steps=tuple(range(1, 100)))
    model = nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = samebits.data.DataLoader(torch.randn(12, 2), batch_size=batch_size, shuffle=True)
    with samebits.Run(run_dir, model=model, opt=opt, **(extra or {}), **options) as run:
        for step, x in run.steps(loader, epochs=epochs):
            loss = model(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            body(run, step)
    return digest.of_value([model.state_dict(), opt.state_dict()])


def kill_at(number):
    return lambda run, step: os.kill(os.getpid(), signal.SIGKILL) if step.number == number else None


@pytest.fixture
def halfway(forked, tmp_path):
    """A run directory of a run that was killed in step 4 of 6, with commits behind steps 3 and 4; and the right end."""
    expected = forked(lambda: train(None)).value
    assert forked(lambda: train(tmp_path / "r", body=kill_at(4))).code == -9
    return tmp_path / "r", expected


def test_the_run_directory_of_another_model_is_refused(halfway):
    """Other shapes are named, the model keeps its weights, and the directory stays good for its own program."""
    run_dir, expected = halfway
    with pytest.raises(
        RunMismatchError,
        match=r"model.0.weight had shape \(4, 2\) float32, has \(5, 2\) float32.*another run directory",
    ):
        train(run_dir, hidden=5)
    assert train(run_dir) == expected


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"seed": 2}, RunMismatchError, "made with seed 1, this program has seed 2"),
        ({"batch_size": 3}, PipelineMismatchError, "batch_size=3.* was different"),
        ({"extra": {"ema": nn.Linear(1, 1)}}, RunMismatchError, r"'ema' is not in the commit\. Use"),
    ],
)
def test_another_program_is_refused(halfway, change, error, named):
    """Another seed, pipeline or set of objects is named; the directory stays good for its own program."""
    run_dir, expected = halfway
    with pytest.raises(error, match=named):
        train(run_dir, **change)
    assert train(run_dir) == expected


def test_a_name_that_is_spelt_otherwise_is_told_with_that_of_the_commit(halfway):
    """`optimizer=` where the run began with `opt=`: both names, before anything is changed."""
    run_dir, _ = halfway
    samebits.set_random_seed(1)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    named = r"'optimizer' is not in the commit \(it holds 'opt', not given to Run\)"
    with (
        pytest.raises(RunMismatchError, match=named),
        samebits.Run(run_dir, model=model, optimizer=optimizer),
    ):
        pass


def test_another_loop_is_refused(halfway):
    """A commit that stands in a loop which the program does not come to next is refused by name."""
    run_dir, _ = halfway
    samebits.set_random_seed(1)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with (
        pytest.raises(RunMismatchError, match="is in the loop 'train'"),
        samebits.Run(run_dir, model=model, opt=opt) as run,
    ):
        next(run.steps([1], name="other"))


def test_another_environment_is_refused_unless_allowed(halfway):
    """A commit made under other flags is refused, naming what differs; allowed, it is resumed."""
    run_dir, _ = halfway
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism():
        with pytest.raises(
            RunMismatchError,
            match=r"(?s)op_determinism.enabled: False then, True now \('flags'\).*allow_changes=\['flags'\]",
        ):
            train(run_dir)
        train(run_dir, allow_changes=["flags"])


def test_another_number_of_threads_is_put_back(halfway, forked, capfd):
    """A run goes on with the number of threads that it began with, and says so."""
    run_dir, expected = halfway

    def more_threads():
        torch.set_num_threads(3)
        return train(run_dir), torch.get_num_threads()

    assert forked(more_threads).value == (expected, 1)
    assert "began with 1 threads" in capfd.readouterr().err


def test_under_the_switch_another_number_of_threads_is_kept(tmp_path, forked, capfd):
    """With thread invariance a run goes on with the threads of its machine, to the same weights."""

    def straight():
        samebits.set_random_seed(1)
        with samebits.enable_op_determinism(across="threads"):
            return train(None)

    def killed():
        samebits.set_random_seed(1)
        with samebits.enable_op_determinism(across="threads"):
            train(tmp_path / "r", body=kill_at(4))

    def resumed():
        torch.set_num_threads(3)
        samebits.set_random_seed(1)
        with samebits.enable_op_determinism(across="threads"):
            return train(tmp_path / "r"), torch.get_num_threads()

    expected = forked(straight).value
    assert forked(killed).code == -9
    assert forked(resumed).value == (expected, 3)
    assert "began with" not in capfd.readouterr().err


def newest(run_dir):
    return sorted((run_dir / "commits").iterdir())[-1]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("name", ["tensors.safetensors", "manifest.json"])
def test_a_damaged_commit_is_skipped_with_a_warning(halfway, damage, name):
    """With a flipped byte, a cut, an empty or a missing file, the commit before it is used: same end, one warning."""
    run_dir, expected = halfway
    file = newest(run_dir) / name
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) * 3 // 4] ^= 4
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"flip": data, "cut": data[:-5], "empty": b""}[damage])
    with pytest.warns(UserWarning, match="skipped the damaged commit") as told:
        assert train(run_dir) == expected
    (skipped,) = [one for one in told if "skipped" in str(one.message)]
    assert "Run(" in linecache.getline(skipped.filename, skipped.lineno)  # the user's own line


def test_only_damaged_commits_raise(halfway):
    """When no commit is intact, the run does not silently begin anew: the error names each and the cure."""
    run_dir, _ = halfway
    for commit in (run_dir / "commits").iterdir():
        (commit / "manifest.json").write_text("{}")
    with pytest.raises(CorruptCommitError, match="remove"):
        train(run_dir)


def test_a_full_disk_keeps_what_was_committed(halfway, forked):
    """When a commit cannot be written, one line says what is safe; with room again the run ends with equal bits."""
    run_dir, expected = halfway

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
        with pytest.raises(CommitError) as caught:
            train(run_dir)
        return str(caught.value)

    message = forked(limited).value
    assert "\n" not in message and "step 4" in message and str(run_dir) in message
    assert train(run_dir) == expected


def test_a_read_only_directory_is_named(forked, tmp_path, capfd):
    """A folder that cannot be written is refused at once, with its name."""
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o555)
    for parent in folder.parents:
        if parent.is_relative_to("/tmp/pytest-of-root") and parent != folder:
            parent.chmod(0o755)

    def as_nobody():
        if os.getuid() == 0:
            os.setuid(65534)
        train(folder / "r")

    assert forked(as_nobody).code == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert "RunDirectoryError" in last and "readonly" in last


def test_a_directory_in_use_is_refused(halfway):
    """A second live process, or Run, in the same directory is refused and told who holds it."""
    run_dir, _ = halfway
    with CommitStore(run_dir):
        pid = os.fork()
        if pid == 0:
            try:
                train(run_dir)
            except RunDirectoryError as error:
                os._exit(42 if str(os.getppid()) in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_a_foreign_folder_is_left_alone(tmp_path):
    """A folder with other files in it is no run directory: refused, and nothing is written there."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match=str(tmp_path)):
        train(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_nan_loss_names_the_step_and_commits_no_more(tmp_path):
    """run.log with a NaN loss raises, naming the step; the commit before it is the newest."""

    def body(run, step):
        run.log(loss=torch.tensor(float("nan") if step.number == 3 else 1.0))

    with pytest.raises(NonFiniteLossError, match=r"step 3 \(epoch 1, batch 0\)"):
        train(tmp_path / "r", body=body)
    assert newest(tmp_path / "r").name.startswith("000000000003")


def test_an_unsavable_value_is_named_with_its_path(tmp_path):
    """A function in run.state cannot be saved without pickle: the error names its path and nothing is written."""

    def body(run, step):
        run.state.schedule = {"fn": print}

    with pytest.raises(UnsavableStateError, match=r"schedule.*fn"):
        train(tmp_path / "r", body=body)


def test_weights_kept_without_a_copy_are_refused(tmp_path):
    """run.state.best = model.state_dict() keeps the live weights: refused by path, with the cure; a copy is fine."""
    model = nn.Linear(2, 2)
    samebits.set_random_seed(0)
    for keep, refused in ((lambda w: w, True), (copy.deepcopy, False)):
        process.overrides = CheckOverrides(commit_steps=(1,))
        raises = pytest.raises(
            UnsavableStateError, match=r"run.state.best\[.weight.\] is the memory of model.weight.*deepcopy"
        )
        with (
            raises if refused else contextlib.nullcontext(),
            samebits.Run(tmp_path / str(refused), model=model) as run,
        ):
            for _ in run.steps([1, 2]):
                run.state.best = keep(model.state_dict())


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda d: samebits.Run(d, model=3), InvalidArgumentError, "model=3.*the options are run_dir, save"),
        (lambda d: samebits.Run(d, keep=0), InvalidArgumentError, "keep=0"),
        (lambda d: samebits.Run(d, save="200%"), InvalidArgumentError, "save=.200%"),
        (lambda d: samebits.Run(d).steps([1]), InvalidArgumentError, "enter the run"),
        (lambda d: samebits.Run(d, m=nn.Linear(1, 1)).add("m", nn.Linear(1, 1)), DuplicateNameError, "'m'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, call, error, named):
    """A bad argument raises one clear error that names it, and makes no folder."""
    with pytest.raises(error, match=named):
        call(tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda run: run.steps([1], epochs=0), InvalidArgumentError, "epochs=0"),
        (lambda run: run.steps(iter([1])), InvalidArgumentError, "read only once"),
        (lambda run: run.steps(7), InvalidArgumentError, "not iterable"),
        (lambda run: next(run.steps([])), EmptyDatasetError, "no batch"),
        (lambda run: [run.steps([1]), run.steps([1])], DuplicateNameError, "'train'"),
        (lambda run: run.state.best, AttributeError, "run.state.get"),
        (lambda run: run.__enter__(), InvalidArgumentError, "entered once"),
    ],
)
def test_bad_calls_are_named(call, error, named):
    """A wrong call on a run raises one clear error that names the right one."""
    samebits.set_random_seed(0)
    with samebits.Run(None) as run, pytest.raises(error, match=named):
        call(run)


def test_unseeded_runs_are_refused_under_the_switch_and_warned_about_otherwise(python):
    """Without a seed a run raises under the switch; else it warns, and resumes with the seed that it began with."""
    source = (
        "import sys, torch, samebits\n"
        "if sys.argv[2] == 'on': samebits.enable_op_determinism()\n"
        "m = samebits.random.normal(samebits.random.key(1), 3)\n"
        "with samebits.Run(sys.argv[1]) as run:\n"
        "    for step, x in run.steps([1, 2, 3]):\n"
        "        run.state.drawn = run.state.get('drawn', 0) + float(torch.rand(1))\n"
        "        if step.number == 1 and not run.resumed: run.commit()\n"
        "        if step.number == 2 and not run.resumed: break\n"
        "print(run.state.drawn)\n"
    )
    refused = python(source, "a", "on", code=1)
    assert "UnseededError: Run begins under op determinism, and no seed was set" in refused.stderr
    warned = python(source, "b", "off")
    assert "no seed was set" in warned.stderr
    assert python(source, "b", "off").stdout == warned.stdout
    assert python(source, "c", "off").stdout != warned.stdout
    assert issubclass(UnseededError, RuntimeError)


def test_break_and_exceptions_commit_nothing(tmp_path):
    """A `break` or an exception leaves no commit of its own: the restart replays to the same place."""
    samebits.set_random_seed(0)
    process.overrides = CheckOverrides(commit_steps=())
    for leave in ("break", "raise"):
        for _ in range(2):
            seen = []
            try:
                with samebits.Run(tmp_path / leave, ignore=["seen"]) as run:
                    for step, _ in run.steps([1, 2, 3]):
                        seen.append(step.number)
                        if step.number == 1 and leave == "break":
                            break
                        if step.number == 1:
                            raise KeyError
            except KeyError:
                pass
            assert seen == [0, 1]
        assert not list((tmp_path / leave / "commits").iterdir())
        shutil.rmtree(tmp_path / leave)
