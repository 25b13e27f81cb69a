"""Which locals a loop carries."""

import sys

import pytest

from samebits._program.carried_locals import liveness_at, names_read

SEEN = []


class Steps:
    def __init__(self, count=3):
        self.count = count

    def __iter__(self):
        return self

    def __next__(self):
        frame = sys._getframe(1)
        SEEN.append(tuple(map(set, liveness_at(frame.f_code, frame.f_lasti).carried())))
        self.count -= 1
        if self.count < 0:
            raise StopIteration
        return self.count, (1, 2)


def accumulators():
    best, total, rate = 9.0, 0, 0.1
    for step, (x, y) in Steps():
        loss = x * rate
        total += loss
        if step < best:
            best, kept = step, y
    return loss, kept


def inside_with_and_try():
    failed, only_printed = 0, None
    try:
        with open("/dev/null") as file:
            for step, _ in Steps():
                only_printed = step
                try:
                    step // 0
                except ZeroDivisionError:
                    failed += 1
    except KeyboardInterrupt:
        pass
    return only_printed, failed


def closures():
    count, x = 0, 0

    def bump():
        nonlocal count
        count += 1

    for step, (x, y) in Steps():

        def closure():
            return x + y

        bump()
        closure()


def manual_next():
    iterator, hidden = iter(Steps()), 0
    while True:
        try:
            step, (x, y) = next(iterator)
        except StopIteration:
            break
        hidden = hidden + x
        unused = hidden


def kept_unless_overwritten():
    kept = 0
    for step, _ in Steps():
        kept = step
        again = kept


def assigned_in_the_condition():
    steps, hidden = Steps(), 0
    while (item := next(steps, None)) is not None:
        step, batch = item
        parts = [batch[i] for i in range(2)]
        hidden = hidden + len(parts)


def fetched_at_the_end():
    steps = Steps()
    item = next(steps, None)
    while item is not None:
        step, batch = item
        loss = [batch for _ in range(2)]
        before = item
        item = next(steps, None)


def fetched_at_the_end_after_another():
    steps, item = Steps(), None
    while True:
        if item is not None:
            step, batch = item
        item = next(steps)


def fetched_in_a_range():
    steps, count, average = Steps(), 3, 0.0
    for number in range(count):
        step, batch = next(steps)
        average = 0.9 * average + step


def statements_of_every_kind():
    for step, batch in Steps():
        match batch:
            case (first, _):
                kind = first
            case _:
                kind = 0
        with open("/dev/null") as file:
            size = (kind, file)
        try:
            loss = size
        except ValueError as error:
            raise error
        else:
            loss = (loss, 1)
        finally:
            done = True
        if (value := done) and (other := value):
            loss = (loss, other)

        def inner():
            return loss

        inner()
        pairs = [loss for loss in batch], {step: loss for step, loss in zip(batch, batch)}
        for loss in pairs:
            pass


@pytest.mark.parametrize(
    ("loop", "names", "behind"),
    [
        (accumulators, {"best", "total", "rate"}, {"kept"}),
        (inside_with_and_try, {"failed"}, set()),
        (closures, {"count", "bump"}, set()),
        (manual_next, {"iterator", "hidden"}, set()),
        (kept_unless_overwritten, set(), set()),
        (assigned_in_the_condition, {"steps", "hidden"}, set()),
        (fetched_in_a_range, {"steps", "average"}, set()),
        (statements_of_every_kind, set(), set()),
    ],
)
def test_exactly_the_carried_locals_are_named(loop, names, behind):
    """Carried is what the next body may read before it writes it, or only the code behind the loop; nothing else."""
    SEEN.clear()
    loop()
    assert SEEN
    assert all(found == (names, behind) for found in SEEN)


def test_a_batch_that_is_fetched_at_the_bodys_end_is_carried_by_the_iterator_alone():
    """The call before the loop is in no loop; the one at the body's end carries the iterator, and no variable of the body."""
    SEEN.clear()
    fetched_at_the_end()
    assert SEEN[0] == (set(), set()) and SEEN[1:] == [({"steps"}, set())] * 3
    with pytest.raises(StopIteration):  # negative control: no call before the loop fetches the item again
        fetched_at_the_end_after_another()
    assert SEEN[-1] == ({"steps", "item"}, set())


def test_module_level_loops_are_analysed():
    """In a script without functions the loop's variables are module globals, found the same way."""
    SEEN.clear()
    source = (
        "best = 5\nfor step, (x, y) in Steps():\n    loss = x\n    if loss < best: best = loss\nprint(end='')"
    )
    exec(compile(source, "script", "exec"), {"Steps": Steps})
    assert all("best" in inside and "loss" not in inside | behind for inside, behind in SEEN)


def test_names_read_finds_globals_of_functions_at_any_depth():
    """Globals that methods and nested functions use are named; those of the module's own code are not."""
    source = "def f():\n  def g():\n    global total\n    total += rate\n  return g\nunused = 1\n"
    assert {"total", "rate"} <= names_read(compile(source, "script", "exec"))
    assert "unused" not in names_read(compile(source, "script", "exec"))
