"""When commits are made, which of them stay, and how two runs are told apart."""

import json
import os
import re
import time
import warnings

import pytest
import torch
from torch import nn

import samebits
from samebits._context import CheckOverrides, process
from samebits.checkpoint import load_commit
from samebits.checkpoint._store import CommitStore
from samebits.errors import InvalidArgumentError
from samebits.train._cadence import Cadence


def run_of(run_dir, *, steps=12, body=lambda run, step: None, loader=None, epochs=1, **options):
    samebits.set_random_seed(1)
    model = nn.Linear(2, 1)
    with samebits.Run(run_dir, model=model, **options) as run:
        for step, x in run.steps(loader or [torch.ones(4, 2)] * steps, epochs=epochs):
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad
            run.log(loss=loss)
            body(run, step)


def steps_of(run_dir):
    return sorted(int(path.name[:12]) for path in (run_dir / "commits").iterdir())


@pytest.mark.parametrize(
    "save", [0, -1, True, 2.5, "", "3", "0%", "101%", "-3%", "nan%", "0s", "1m", "never", None, "3%%"]
)
def test_a_bad_save_is_refused_with_the_choices(tmp_path, save):
    """Anything but a share, steps, seconds or "explicit" raises, names itself and the choices, and makes no folder."""
    with pytest.raises(InvalidArgumentError, match=rf"save={re.escape(repr(save))}.*'3%'.*'30s'.*'explicit'"):
        samebits.Run(tmp_path / "r", save=save)
    assert not (tmp_path / "r").exists()


def test_steps_seconds_and_shares_are_due_when_they_say():
    """Every n-th step; after so many seconds; at a cost below the share, after a second; explicit: never."""
    every = Cadence(4)
    assert [step for step in range(13) if every.due(step)] == [4, 8, 12]
    seconds, minutes = Cadence("0.05s"), Cadence("600s")
    time.sleep(0.06)
    assert seconds.due(1) and not minutes.due(1)
    share = Cadence("50 %")
    share.record_commit(300)
    assert not share.due(1)
    share.record_commit(0.02)
    time.sleep(0.05)
    assert not share.due(1)  # 0.02 s are less than half of it, but a second has not passed
    time.sleep(1)
    assert share.due(1)
    share.record_write(seconds=0.01, processor_seconds=300.0)  # what the writer process needs counts, too
    assert not share.due(1)
    assert not Cadence("explicit").due(4)


@pytest.mark.parametrize(("save", "least"), [(1, 2), (4, 2), ("0.001s", 2), ("100%", 1), ("explicit", 1)])
def test_every_policy_ends_with_the_same_state(tmp_path, save, least):
    """Whatever `save` says, the last commit is that of the end, with the same content."""
    run_of(tmp_path / "r", save=save, keep=1000, body=lambda run, step: time.sleep(0.01))
    manifest, state = CommitStore(tmp_path / "r").newest()
    assert manifest.step == 12 and manifest.finished
    assert len(steps_of(tmp_path / "r")) >= least
    process.overrides = CheckOverrides(commit_steps=())
    run_of(tmp_path / "other")
    other, _ = CommitStore(tmp_path / "other").newest()
    assert other.commit.content == manifest.commit.content


VALUES = [5.0, 3.0, float("nan"), 4.0, 1.0, 9.0, 1.0, 2.0, 8.0, 8.5, 9.5, 7.0]


@pytest.mark.parametrize(("best", "expected"), [("score", [5, 7, 8, 12]), ("max:score", [6, 10, 11, 12])])
def test_the_best_commits_stay_besides_the_newest(tmp_path, best, expected):
    """keep_best=3 keeps the states behind the three best values (of equal ones the earlier), keep=1 the newest."""

    def body(run, step):
        run.log(score=VALUES[step.number])

    run_of(tmp_path / "r", body=body, save="explicit", keep=1, keep_best=3, best=best)
    assert steps_of(tmp_path / "r") == expected


def test_run_best_tells_what_no_log_does(tmp_path):
    """run.best(value) keeps the best states without a name; keep_best=0 keeps none of them."""
    for keep_best, expected in ((1, [5, 11, 12]), (0, [11, 12])):
        run_dir = tmp_path / str(keep_best)
        process.overrides = CheckOverrides(commit_steps=(11,))
        run_of(run_dir, body=lambda run, step: run.best(VALUES[step.number]), keep=2, keep_best=keep_best)
        assert steps_of(run_dir) == expected
    with CommitStore(run_dir) as store:
        assert set(store.values().values()) <= {9.5, 7.0}


@pytest.mark.parametrize("options", [{"keep_best": -1}, {"keep_best": 1.5}, {"best": "loss"}])
def test_bad_choices_of_the_best_are_refused(tmp_path, options):
    """A negative number, half a commit, and a name where nothing is kept raise before a folder is made."""
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        samebits.Run(tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def wander(folder, *, epochs=6, ends=None, **options):
    """A fit that walks past its optimum and comes back; its history."""
    samebits.set_random_seed(1)
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(-1.0)
    opt = torch.optim.SGD(model.parameters(), 0.16, momentum=0.95)
    batches = [(torch.ones(2, 1), torch.ones(2, 1))] * 3
    callback = samebits.callbacks.Lambda(on_batch_begin=lambda trainer, step: 1 / 0 if step == ends else None)
    trainer = samebits.Trainer(model, nn.MSELoss(), opt, callbacks=[callback])
    options = {"save": "explicit", "keep": 1, "verbose": 0, **options}
    return trainer.fit(batches, epochs, validation_data=batches, run_dir=folder, **options).history


@pytest.mark.parametrize(("best", "rises"), [("val_loss", False), ("max:val_loss", True), ("loss", False)])
def test_fit_keeps_the_epochs_that_validated_best(tmp_path, best, rises):
    """fit(keep_best=2, best="val_loss") keeps the states behind the two best epochs, killed in one of them, too."""
    found = wander(tmp_path / "r", keep_best=2, best=best)[best.removeprefix("max:")]
    order = sorted(range(6), key=lambda epoch: -found[epoch] if rises else found[epoch])
    assert order[:2] not in ([4, 5], [5, 4]) and steps_of(tmp_path / "r") == sorted(
        {3 * e + 3 for e in order[:2]} | {18}
    )
    if best == "val_loss":
        weight = load_commit(tmp_path / "r", step=3 * order[0] + 3)["objects"]["model"]["weight"]
        assert float((weight - 1).square().sum()) == pytest.approx(found[order[0]])
    with pytest.raises(ZeroDivisionError):
        wander(tmp_path / "cut", keep_best=2, best=best, ends=13)
    assert wander(tmp_path / "cut", keep_best=2, best=best)[best.removeprefix("max:")] == found
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "r")


def test_a_best_that_nobody_logs_is_warned_of(tmp_path):
    """fit and Run end with a warning that has the names that there were; a resume that logs no more of it has none."""
    with pytest.warns(UserWarning, match=r"fit\(best='val_los'\): no value.*There were loss, val_loss"):
        wander(tmp_path / "r", keep_best=1, best="max:val_los", epochs=1)
    with pytest.warns(UserWarning, match=r"Run\(best='score'\): no value.*There were loss"):
        run_of(tmp_path / "s", keep_best=1, best="score")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epochs, scored in ((1, range(12)), (2, ())):
            run_of(
                tmp_path / "t",
                body=lambda run, step: run.log(score=1.0) if step.number in scored else None,
                epochs=epochs,
                keep_best=1,
                best="score",
            )


@pytest.mark.parametrize("leave", ["break", "go on"])
def test_stop_commits_the_step_that_was_done(tmp_path, leave):
    """run.stop() in step 4: the final commit stands behind 5 steps, whether the loop is then left by break or by itself."""
    samebits.set_random_seed(1)
    made = []
    for way in ("go on", leave):
        with samebits.Run(tmp_path / f"{way}{len(made)}", save="explicit") as run:
            for step, _ in run.steps([1, 2, 3], epochs=4):
                run.state.last = step.number
                if step.number == 4:
                    run.stop()
                    if way == "break":
                        break
        made.append(CommitStore(run.run_dir).newest()[0])
    assert made[0].step == made[1].step == 5
    assert made[0].commit.content == made[1].commit.content


def pipeline(change=-1):
    return (
        samebits.data.Pipeline.range(40)
        .map(lambda i: torch.full((2,), float(i) + 100 * (i == change)))
        .batch(4)
    )


def rolling(run_dir):
    """The rolling digest of each kept commit, by its step."""
    manifests = [json.loads(path.read_text()) for path in sorted(run_dir.glob("commits/*/manifest.json"))]
    return {manifest["position"]["step"]: manifest["rolling"] for manifest in manifests}


def test_a_list_that_grows_while_it_is_read_is_read_to_its_end():
    """An element that a body appends to the list, before its last one is read, comes in the same epoch."""
    samebits.set_random_seed(1)
    work, seen = [1, 2], []
    with samebits.Run(None, check_complete=False) as run:
        for _, one in run.steps(work):
            seen.append(one)
            if one == 1:
                work.append(3)
    assert seen == [1, 2, 3]


def test_the_rolling_digest_of_commits_finds_where_two_runs_part(tmp_path):
    """Equal runs have equal digests; one changed loss or batch: equal in the commits up to its step, different after it."""
    found = {}
    for name, loss, element in (
        ("a", -1, -1),
        ("b", -1, -1),
        ("loss", 7, -1),
        ("batch", -1, 29),  # of batch 7
    ):

        def body(run, step, loss=loss):
            if step.number == loss:
                run.log(loss=0.5)
            if step.number % 3 == 2:
                run.commit()

        run_of(tmp_path / name, body=body, loader=pipeline(element), save="explicit", keep=9)
        found[name] = rolling(tmp_path / name)
    assert list(found["a"]) == [3, 6, 9, 10]
    parted = {name: [step for step in found["a"] if found["a"][step] != found[name][step]] for name in found}
    assert parted == {"a": [], "b": [], "loss": [9, 10], "batch": [9, 10]}


def test_kills_and_cadences_do_not_change_the_rolling_digest(tmp_path, forked):
    """Killed at step 9 and resumed, with other commits: the last commit has the digest of a run without."""
    run_of(tmp_path / "whole", steps=20, epochs=2)

    def killed():
        process.overrides = CheckOverrides(commit_steps=(3, 7))
        run_of(
            tmp_path / "r",
            steps=20,
            epochs=2,
            body=lambda run, step: os.kill(os.getpid(), 9) if step.number == 9 else 0,
        )

    assert forked(killed).code == -9
    assert max(rolling(tmp_path / "r")) == 7
    run_of(tmp_path / "r", steps=20, epochs=2, save=3)
    assert rolling(tmp_path / "r")[40] == rolling(tmp_path / "whole")[40]
