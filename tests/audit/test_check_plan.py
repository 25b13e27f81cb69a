"""What `verify` draws from the baseline."""

import random
from pathlib import Path

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samebits.audit._record.record_file import Record
from samebits.audit._verify.baseline import facts_of
from samebits.audit._verify.check_plan import GROUPS, KILLS, BaselineFacts, checks_after, kill_checks, within
from samebits.audit._verify.verify_report import _names_of


def facts(lengths, validates=True, **changed):
    """The facts of a run whose epochs have `lengths` batches and, perhaps, a validation at each end."""
    ends = [sum(lengths[: n + 1]) - 1 for n in range(len(lengths))]
    values = {
        "steps": tuple(range(sum(lengths))),
        "epoch_lasts": frozenset(ends),
        "epoch_firsts": frozenset({0, *(end + 1 for end in ends[:-1])}),
        "validations": tuple(ends) if validates else (),
        "uses_run": True,
        "loaders": [2],
    }
    return BaselineFacts(**{**values, **changed})


runs = st.lists(st.integers(1, 9), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 1)
property_test = hypothesis_settings(derandomize=True, max_examples=300, deadline=None)


@property_test
@given(runs, st.integers(0, 10**6), st.booleans())
def test_every_kill_hits_a_step_of_the_run_after_a_commit_that_a_restart_can_resume_from(
    lengths, seed, validates
):
    """Each kill is at a step the baseline made, behind a commit at a boundary after the first step."""
    for check in kill_checks(facts(lengths, validates), random.Random(seed)):
        first = check.processes[0]
        assert 1 <= first.commit_steps[0] <= first.kill.step < sum(lengths)
        assert check.processes[-1].kill is None


@property_test
@given(st.lists(st.integers(4, 9), min_size=1, max_size=5), st.integers(0, 10**6))
def test_mid_epoch_means_that_commit_and_kill_are_inside_the_same_epoch(lengths, seed):
    """Where epochs are long enough, no epoch begins or ends between the commit and the killed step."""
    known = facts(lengths)
    kill, (commit,) = (
        (process := kill_checks(known, random.Random(seed))[0].processes[0]).kill,
        process.commit_steps,
    )
    assert commit < kill.step
    assert not known.epoch_lasts & set(range(commit, kill.step + 1))
    assert not known.epoch_firsts & set(range(commit, kill.step + 1))


@property_test
@given(runs, st.integers(0, 10**6))
def test_the_second_kill_row_hits_an_epochs_last_step(lengths, seed):
    """The step killed in the second row ends an epoch, and not the run where another epoch could be had."""
    known = facts(lengths)
    step = kill_checks(known, random.Random(seed))[1].processes[0].kill.step
    assert step in known.epoch_lasts
    assert step < max(known.steps) or len(known.epoch_lasts - {0}) == 1


@property_test
@given(runs, st.integers(0, 10**6))
def test_the_third_kill_row_goes_on_before_it_is_killed_again(lengths, seed):
    """First in a validation that the baseline saw, then in a save at a later boundary, then to the end."""
    first, second, third = kill_checks(facts(lengths), random.Random(seed))[2].processes
    assert first.kill.at == "validation" or lengths[0] == sum(lengths) - 1 == 0
    assert second.kill.at == "commit" and second.kill.step in second.commit_steps
    assert second.kill.step > first.kill.step
    assert third.kill is None


def test_one_seed_draws_one_plan_and_another_seed_another():
    """`--seed` repeats the kills."""
    known, groups = facts([9, 9, 9]), ("kill",)
    assert checks_after(known, groups, 1) == checks_after(known, groups, 1)
    assert len({str(checks_after(known, groups, seed)) for seed in range(20)}) > 10


def test_rows_that_do_not_apply_say_why_and_start_nothing():
    """No Run: no kill rows; no loader: no worker rows."""
    rows = checks_after(facts([5], uses_run=False, loaders=[]), ("kill", "workers", "threads"), 0)
    empty = [row for row in rows if not row.processes]
    assert [row.group for row in empty] == ["kill"] * 3 + ["workers"] * 3
    assert all(row.does_not_apply for row in empty)


def test_worker_rows_are_promised_of_loaders_of_samebits():
    """Of torch's alone they are measured, and say why; beside one of samebits, torch's is not varied."""

    def rows(loaders, torchs):
        return checks_after(facts([5], loaders=loaders, torch_loaders=torchs), ("workers",), 0)

    for loaders, torchs, promised, torch_workers in (
        ([0, 2], (), True, True),
        ([0], (0,), False, True),
        ([2, 0], (0,), True, False),
    ):
        found = rows(loaders, torchs)
        assert [row.promised for row in found] == [promised] * 3
        assert [bool(row.unpromised) for row in found] == [not promised] * 3
        assert [row.processes[0].torch_workers for row in found] == [torch_workers] * 3
    assert "script's own" in rows([0], (0,))[0].note  # torch's, which has 0
    assert ["script's own" in row.note for row in rows([3, 0], (0,))] == [False, False, True]


def test_thread_rows_are_promised_where_the_switch_makes_them_so():
    """Thread counts decide for a script that has the switch on in every step; for others they are measured."""
    assert [row.promised for row in checks_after(facts([5]), ("threads",), 0)] == [False, False]
    assert [row.promised for row in checks_after(facts([5], across="threads"), ("threads",), 0)] == [
        True,
        True,
    ]


def test_the_row_of_another_cpu_says_where_it_varies_little():
    """A record of a CPU without AVX-512 gives the row a note that says so; one of a CPU that has it does not."""
    for capability, little in (("AVX2", True), ("AVX512", False)):
        end = {"across": "machines", "environment": {"cpu_capability": capability}}
        (row,) = checks_after(facts_of(Record(Path("."), {}, end=end)), ("cpu",), 0)
        assert row.promised and ("no AVX-512 here: little was varied" in row.note) is little


def test_the_row_of_another_cpu_is_for_those_who_ask_for_every_machine():
    """It is in the table where the mode was on in every step; asked for alone it says that it does not apply; else it is not there."""
    every = ("kill", "workers", "threads", "cpu")
    names = [check.group for check in checks_after(facts([4, 4], across="machines"), every, 1)]
    assert names.count("cpu") == 1
    assert "cpu" not in [check.group for check in checks_after(facts([4, 4]), every, 1)]
    (alone,) = checks_after(facts([4, 4]), ("cpu",), 1)
    assert 'does not call enable_op_determinism(across="machines")' in alone.does_not_apply


@property_test
@given(runs, st.integers(0, 10**6), st.integers(2, 5))
def test_a_job_loses_one_rank_and_all_ranks(lengths, seed, ranks):
    """Mid-epoch one rank is killed, at an epoch's end and in a save all; one process is killed at the same steps (control)."""
    job = kill_checks(facts(lengths, ranks=ranks), random.Random(seed))
    kills = [process.kill for check in job for process in check.processes if process.kill is not None]
    assert kills[0].rank in range(ranks) and [kill.rank for kill in kills[1:]] == [None, 0, None]
    assert f"SIGKILL of rank {kills[0].rank} " in job[0].varied and "SIGKILL of all ranks" in job[1].varied
    alone = kill_checks(facts(lengths), random.Random(seed))
    assert all(p.kill is None or p.kill.rank is None for check in alone for p in check.processes)
    assert "SIGKILL in" in alone[0].varied


def test_replicas_are_compared_where_there_are_any():
    """A job has the row; one process has it only if it is asked for, and then it does not apply."""
    groups = ("run-again", "replicas")
    (row,) = checks_after(facts([4], ranks=2), groups, 0)
    assert row.name == "replicas equal" and row.promised
    assert checks_after(facts([4]), groups, 0) == []
    assert checks_after(facts([4]), ("replicas",), 0)[0].does_not_apply


@property_test
@given(runs, st.booleans())
def test_each_kill_can_be_required_by_its_name(lengths, validates):
    """With and without validations the three kills have the names that --checks and --require take, in their order."""
    kills = kill_checks(facts(lengths, validates), random.Random(1))
    assert [_names_of(check) for check in kills] == [("kill", name) for name in KILLS]


@property_test
@given(runs, st.integers(1, 200), st.integers(1, 9), st.integers(1, 3))
def test_what_fits_into_the_time_keeps_the_first_kill_longest(lengths, seconds, each, jobs):
    """`within`: the checks that stay fit, or nothing more can go; those left out come back with more time; the first kill goes last."""
    checks = checks_after(facts(lengths, across="machines"), GROUPS, 1)
    kept, left_out = within(checks, seconds, each, jobs)
    assert sorted(map(id, [*kept, *left_out])) == sorted(map(id, checks))
    cost = (1 + sum(len(check.processes) for check in kept)) * each / jobs
    assert cost <= seconds or not [check for check in kept if check.processes]
    assert not any(check.processes for check in kept) or any("mid-epoch" in check.name for check in kept)
    assert within(checks, 10**6, each, jobs) == (checks, [])
