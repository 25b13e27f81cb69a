import os
import signal
import sys
import threading
import time
import warnings
from collections import namedtuple
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate as torchs_collate

from samebits.data import Pipeline
from samebits.data._calls.process_generators import Draws
from samebits.data._collate import default_collate
from samebits.data._workers.launch_workers import Server
from samebits.data._workers.results import ResultMemory, offer_memory, use_offered_memory, writes_in_place
from samebits.data._workers.worker_process import StageWork, WorkerJob
from samebits.errors import InvalidArgumentError, PipelineError, PipelineTimeoutError

pytestmark = pytest.mark.timeout(120)
# pytest imports it by a name that the server cannot
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Point = namedtuple("Point", "x y")


@dataclass
class Sample:
    image: torch.Tensor
    label: int


class Tagged(torch.Tensor):
    """A subclass of Tensor."""


def results():
    """One of everything that a function may return."""
    grid = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    twice = torch.arange(5)
    return {
        "tensors": [torch.arange(6).view(2, 3).to(kind) for kind in (torch.bfloat16, torch.float64, torch.bool, torch.complex64)],
        "float8": torch.ones(3).to(torch.float8_e4m3fn).view(torch.uint8),
        "0-d": [torch.tensor(3.5), np.array(2, np.int8), np.float32(1.5)],
        "empty": [torch.empty(0, 3), np.empty((2, 0), np.int16), torch.empty(0)],
        "layouts": [torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.arange(12).view(3, 4).t(), torch.ones(3).expand(4, 3), torch.arange(10)[::2]],
        "fortran": [np.asfortranarray(grid), grid.transpose(1, 2, 0), grid[::-1], grid[:, ::2]],
        "structured": np.array([(1, 2.5, b"ab")], [("a", "i4"), ("b", "f8"), ("c", "S3")]),
        "objects": np.array([1, "two", None], object),
        "strings": [np.array(["a", "bcd"]), "text", b"bytes", np.array([""])],
        "dates": np.array(["2020-01-01", "2021-02-03"], "datetime64[D]"),
        "big endian": np.arange(3, dtype=">i4"),
        "nested": Point(Sample(torch.rand(3), 4), [{"deep": (np.arange(3), {1, 2})}]),
        "sparse": torch.eye(3).to_sparse(),
        "grad": torch.ones(3, requires_grad=True),
        "twice": [twice, twice],
        "subclass": torch.ones(2).as_subclass(Tagged),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "ragged": [torch.arange(n) for n in range(5)],
    }  # fmt: skip


def described(value):
    """Types, bits and layouts, all the way down."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_quantized:
            return type(value), str(value)
        bits = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return type(value), value.dtype, tuple(value.shape), value.stride(), value.requires_grad, bits
    if isinstance(value, np.ndarray):
        bits = value.tolist() if value.dtype.hasobject else value.tobytes()
        return type(value), value.dtype.str, value.shape, value.flags.f_contiguous, bits
    if isinstance(value, Sample):
        return Sample, described(value.image), value.label
    if isinstance(value, dict):
        return {name: described(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [described(one) for one in value]
    return type(value), value


def read(pipeline, **options):
    return list(pipeline.with_options(seed=1, **options))


def warned(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = function()
    return value, [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]


def workers_of(iterator):
    """The process ids of the workers."""
    reader = iterator._elements.gi_frame.f_locals["self"]
    return [worker.process.pid for worker in reader._workers._workers.values()]


def children(pid="self"):
    """Process ids of this process's descendants, the zombies among them too."""
    found = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                found |= {child} | (children(child) if os.path.exists(f"/proc/{child}/task") else set())
    return found


def open_files():
    """How many descriptors this process has, and the server if there is one."""
    server = Server._running
    return [
        len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", *([server._process.pid] if server else []))
    ]


@pytest.mark.parametrize("method", ["fork", "server"])
def test_every_kind_of_result_arrives_as_it_was(method):
    """Types, dtypes, bits and strides of a result are those of the same function called here."""
    kinds = list(results())

    def one(n):
        torch.manual_seed(0)
        return {kinds[n]: results()[kinds[n]]}

    pipeline = Pipeline.range(len(kinds)).map(one)
    assert [described(x) for x in read(pipeline, num_parallel_calls=1, start_method=method)] == [
        described(x) for x in read(pipeline)
    ]


def test_a_few_columns_of_a_large_tensor_arrive_without_the_rest():
    """A view of far more memory than it shows is sent as what it shows: the values, in its order of dimensions."""
    (column,) = read(
        Pipeline.range(1).map(lambda n: torch.arange(1000).view(100, 10)[:, 3]), num_parallel_calls=1
    )
    assert column.tolist() == list(range(3, 1000, 10)) and column.stride() == (1,)


def of_zeros(length):
    return torch.zeros(0, 3, dtype=torch.int64)


def test_a_padded_batch_of_nothing_arrives():
    """Sequences that all have length 0 are padded to a batch of no elements, by a worker as in this process."""
    empty = Pipeline.range(4).map(of_zeros).padded_batch(2)
    for batch in read(empty, num_parallel_calls=1) + read(empty):
        assert batch.shape == (2, 0, 3) and batch.dtype == torch.int64


def test_a_tensor_that_is_there_twice_stays_one_tensor():
    """The same object at two places of a result is one object afterwards."""
    a, b = read(Pipeline.range(1).map(lambda n: [torch.arange(3)] * 2), num_parallel_calls=1)[0]
    a[0] = 7
    assert b[0] == 7


def test_results_grow_from_bytes_to_many_megabytes_and_back():
    """A slot grows with the results, and small ones after large ones are right."""
    sizes = [1, 10, 3_000_000, 5, 1_500_000, 0, 7_000_000, 2]
    pipeline = (
        Pipeline.range(len(sizes))
        .map(lambda n: torch.full((sizes[n],), n))
        .batch(1, collate=lambda rows: rows[0])
    )
    for number, one in enumerate(read(pipeline, num_parallel_calls=2)):
        assert one.numel() == sizes[number] and bool((one == number).all())


def test_a_hundred_batches_can_be_held():
    """Holding every batch neither blocks nor changes the contents of any."""
    pipeline = Pipeline.range(400).map(lambda n: torch.full((50,), n)).batch(4)
    held = read(pipeline, num_parallel_calls=2)
    assert [batch[:, 0].tolist() for batch in held] == [
        [4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(100)
    ]


def test_changing_a_batch_changes_no_later_one():
    """What the user does to a batch in place reaches no later batch, and not the held ones."""
    pipeline = (
        Pipeline.range(120).map(lambda n: np.full(3, n)).batch(4).with_options(seed=1, num_parallel_calls=2)
    )
    held = []
    for k, batch in enumerate(pipeline):
        assert batch[:, 1].tolist() == [4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3]
        batch.zero_()
        held.append(batch)
    assert all(not batch.any() for batch in held)


def test_a_batch_that_is_kept_in_a_worker_is_not_written_over():
    """A cache of batches in a worker gives the same batches for as long as it is read."""
    cached = Pipeline.range(16).map(lambda n: np.full(500, n)).batch(4).cache().repeat(20).batch(3)
    # holding none, so that its memory is used again
    with_worker = cached.with_options(seed=1, num_parallel_calls=1)
    assert [x.tolist() for x in with_worker] == [x.tolist() for x in read(cached)]


@pytest.mark.parametrize("method", ["fork", "server"])
def test_an_exception_arrives_as_it_is_inline(method):
    """Class, message, cause, and the line of the user's function."""

    def broken(n):
        if n == 13:
            raise KeyError("no such image")
        return n

    pipeline = Pipeline.range(40).map(broken).batch(5)
    with pytest.raises(PipelineError) as here:
        read(pipeline)
    with pytest.raises(PipelineError) as there:
        read(pipeline, num_parallel_calls=2, start_method=method)
    assert str(there.value) == str(here.value)
    assert "13" in str(here.value) and "map" in str(here.value) and "no such image" in str(here.value)
    assert type(there.value.__cause__) is type(here.value.__cause__) is KeyError
    assert 'raise KeyError("no such image")' in there.value.__notes__[0]


def test_an_error_is_told_again():
    """Whoever goes on after an error meets it again, and not the end of the epoch."""
    for calls in (0, 1):
        iterator = iter(
            Pipeline.range(4)
            .map(lambda n: 1 // (2 - n))
            .batch(1)
            .with_options(seed=1, num_parallel_calls=calls)
        )
        assert next(iterator).item() == 0 and next(iterator).item() == 1
        for _ in range(2):
            with pytest.raises(PipelineError, match="element 2"):
                next(iterator)


def test_an_exception_that_cannot_be_pickled_arrives_as_text():
    """Its class is lost, its message, stage and traceback are not."""

    class Local(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def broken(n):
        raise Local(1, 2)

    with pytest.raises(PipelineError, match="element 0.*1 and 2"):
        read(Pipeline.range(4).map(broken), num_parallel_calls=1)


def test_a_result_that_cannot_be_sent_is_an_error_with_the_cure():
    """A lock as a result names the element, the stage and the cure."""
    with pytest.raises(PipelineError, match=r"elements 0 to 3 of map\(.*lock.*num_parallel_calls=0"):
        read(Pipeline.range(4).map(lambda n: threading.Lock()), num_parallel_calls=1)


def test_what_the_server_cannot_be_sent_is_an_error_with_the_cure():
    """A lock in a function's closure cannot go to a process that shares nothing."""
    lock = threading.Lock()
    with pytest.raises(PipelineError, match="lock.*num_parallel_calls=0"):
        read(Pipeline.range(4).map(lambda n: lock and n), num_parallel_calls=1, start_method="server")


def test_an_unknown_start_method_is_refused():
    """The message names the three."""
    with pytest.raises(InvalidArgumentError, match="spawn.*fork.*server"):
        Pipeline.range(3).with_options(start_method="spawn")


def slow(n):
    time.sleep(0.002)
    return n + torch.rand(()).item()


@pytest.mark.first_case_quick
@pytest.mark.parametrize("method", ["fork", "server"])
def test_a_killed_worker_is_replaced_with_the_same_bits(method):
    """SIGKILL of one worker, then of all, in the middle and while idle: one warning each, and the stream goes on."""
    pipeline = Pipeline.range(160).map(slow).batch(4)
    expected = [batch.tolist() for batch in read(pipeline)]

    def interrupted():
        got = []
        iterator = iter(pipeline.with_options(seed=1, num_parallel_calls=2, start_method=method))
        for batch in iterator:
            got.append(batch.tolist())
            reader = iterator._elements.gi_frame.f_locals["self"]._workers if iterator._elements else None
            pids = [w.process.pid for w in reader._workers.values()] if reader else []
            if len(got) == 8:
                os.kill(pids[0], signal.SIGKILL)
            if len(got) == 20:
                time.sleep(0.3)  # all is done ahead, they are idle
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
        return got

    got, messages = warned(interrupted)
    assert got == expected
    assert 2 <= len(messages) <= 3 and all(
        "signal 9" in message and "same bits" in message for message in messages
    )


def test_a_worker_that_always_dies_is_an_error():
    """os._exit in a function: after three restarts the error names elements, stage and exit code."""

    def leave(n):
        if n == 9:
            os._exit(7)
        return n

    def run():
        with pytest.raises(PipelineError, match=r"exit code 7.*element 2 of batch"):
            read(Pipeline.range(20).map(leave).batch(4), num_parallel_calls=2)

    before = children()
    _, messages = warned(run)
    assert messages and children() == before


def test_a_worker_that_is_killed_as_it_starts_is_replaced():
    """A worker that dies before its first job leaves the stream as it is."""
    pipeline = Pipeline.range(40).map(slow).batch(4)
    expected = [batch.tolist() for batch in read(pipeline)]

    def run():
        iterator = iter(pipeline.with_options(seed=1, num_parallel_calls=2))
        iterator._elements = iterator._begin()
        reader = iterator._elements.gi_frame.f_locals["self"]._workers
        for worker in reader._workers.values():
            os.kill(worker.process.pid, signal.SIGKILL)
        return [batch.tolist() for batch in iterator]

    got, messages = warned(run)
    assert got == expected and messages


def test_sys_exit_in_a_function_is_the_callers():
    """SystemExit goes to the caller with and without workers, and is no death of a worker."""

    def leave(n):
        raise SystemExit(3)

    for calls in (0, 1):
        with pytest.raises(SystemExit):
            read(Pipeline.range(4).map(leave), num_parallel_calls=calls)


def test_a_function_that_waits_for_ever_is_a_timeout():
    """`timeout` names stage and elements, and the workers are gone afterwards."""

    def wait(n):
        while n == 5:
            time.sleep(0.1)
        return n

    before = children()
    for timeout in (0.5, 4.0, 32.0):  # a loaded machine may not have the first ones so soon
        with pytest.raises(PipelineTimeoutError, match=rf"of batch.*{timeout} seconds.*timeout") as caught:
            read(Pipeline.range(20).map(wait).batch(2), num_parallel_calls=2, timeout=timeout)
        assert children() == before
        if "element 2 of batch" in str(caught.value):
            return
    raise AssertionError(str(caught.value))


def test_a_pipeline_within_a_workers_function_is_read_there():
    """A worker has no workers; the elements are the same."""
    inner = Pipeline.range(3).map(lambda n: n * 2).with_options(seed=3, num_parallel_calls=2)
    pipeline = Pipeline.range(6).map(lambda n: sum(inner) + n, stateful=False)
    assert read(pipeline, num_parallel_calls=2) == [6 + n for n in range(6)]


def test_a_forked_child_reads_on_by_itself_and_leaves_the_workers_alone(forked):
    """The user's fork inherits an iterator: both read the same elements to the end."""
    iterator = iter(Pipeline.range(60).map(slow).batch(3).with_options(seed=1, num_parallel_calls=2))
    begun = [next(iterator).tolist() for _ in range(4)]

    def in_child():
        rest = [batch.tolist() for batch in iterator]
        iterator.close()
        return rest

    ended = forked(in_child)
    rest = [batch.tolist() for batch in iterator]
    assert ended.code == 0 and ended.value == rest
    assert begun + rest == [batch.tolist() for batch in read(Pipeline.range(60).map(slow).batch(3))]


def test_nothing_is_left_behind_in_this_process():
    """Exhaustion, break, garbage collection, an error, a thread that ends: children and descriptors are as before."""
    pipeline = (
        Pipeline.range(40).map(lambda n: np.full(100, n)).batch(4).with_options(seed=1, num_parallel_calls=2)
    )
    broken = Pipeline.range(40).map(lambda n: 1 // (20 - n)).with_options(seed=1, num_parallel_calls=2)

    def stop_early():
        for _ in pipeline:
            break

    def raise_in_loop():
        with pytest.raises(KeyError):
            for _ in pipeline:
                raise KeyError

    def fail():
        with pytest.raises(PipelineError):
            list(broken)

    def in_a_thread():
        made = []
        thread = threading.Thread(target=lambda: made.append((iterator := iter(pipeline), next(iterator))))
        thread.start()
        thread.join()
        assert sum(1 for _ in made[0][0]) == 9

    list(pipeline)
    before = children(), open_files(), threading.active_count()
    for use in (lambda: list(pipeline), stop_early, raise_in_loop, fail, in_a_thread):
        use()
        pipeline._forget_iteration(), broken._forget_iteration()
        assert (children(), open_files(), threading.active_count()) == before


@pytest.mark.slow
def test_a_killed_server_is_replaced():
    """SIGKILL of the server takes its workers along; a new one computes what they had, with the same bits."""
    pipeline = Pipeline.range(80).map(slow).batch(4)
    expected = [batch.tolist() for batch in read(pipeline)]

    def run():
        got = []
        for batch in pipeline.with_options(seed=1, num_parallel_calls=2, start_method="server"):
            got.append(batch.tolist())
            if len(got) == 5:
                os.kill(Server._running._process.pid, signal.SIGKILL)
        return got

    got, messages = warned(run)
    assert got == expected and messages


@pytest.mark.soak
@pytest.mark.parametrize("method", ["fork", "server"])
def test_many_lives_and_deaths_leave_nothing_behind(method, soak):
    """Three hundred times opened, half of them killed, a third abandoned: children and descriptors are as before."""
    pipeline = Pipeline.range(40).map(lambda n: np.full(100, n)).batch(4)
    pipeline = pipeline.with_options(seed=1, num_parallel_calls=2, start_method=method)
    expected = [batch.tolist() for batch in pipeline]
    before = children(), open_files()

    def cycle(number):
        iterator = iter(pipeline)
        got = [next(iterator).tolist() for _ in range(number % 5)]
        if number % 2 and got:
            os.kill(workers_of(iterator)[number % 4 // 2], signal.SIGKILL)
        if number % 3:
            assert got + [batch.tolist() for batch in iterator] == expected

    for number in range(300):
        warned(lambda number=number: cycle(number))
        pipeline._forget_iteration()
        assert (children(), open_files()) == before
        soak("lives of a pipeline with workers")


@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    rows=st.integers(1, 5),
    kind=st.sampled_from([np.float32, np.int64, np.bool_, np.float16, np.uint8, np.complex64]),
    order=st.randoms(use_true_random=False),
    in_slot=st.booleans(),
)
def test_the_default_collate_is_torchs(shape, rows, kind, order, in_slot):
    """Bits, dtype and strides of a batch are those of torch's, for arrays and tensors of any layout, in a slot or not."""
    axes = list(range(len(shape)))
    order.shuffle(axes)
    count = int(np.prod(shape))
    arrays = [np.arange(row, row + count).astype(kind).reshape(shape).transpose(axes) for row in range(rows)]
    for elements in (
        arrays,
        [torch.from_numpy(one) for one in arrays],
        [(one, {"a": one, "n": 3}) for one in arrays],
    ):
        expected = torchs_collate(elements)
        if not in_slot:
            assert described(default_collate(elements)) == described(expected)
            continue
        slot = ResultMemory()
        with slot.use_for_empty():
            assert described(default_collate(elements)) == described(expected)
        slot.close()


def test_a_large_batch_is_made_where_it_is_read():
    """The worker's batch of large rows lies in the slot when it is encoded; one that a function made is copied there."""
    for rows in (
        [np.ones((64, 64)) for _ in range(4)],
        [torch.ones(64, 64, dtype=torch.float64) for _ in range(4)],
    ):
        slot = ResultMemory()
        with slot.use_for_empty():
            batch = default_collate(rows)
        assert slot.owns(batch.numpy()) == 0 and slot.owns(batch.clone().numpy()) is None
        slot.close()


def test_only_the_stage_whose_result_it_is_writes_into_the_slot():
    """Batches of other stages, below it or within a user's function, lie in memory of their own."""
    slot, top, other = ResultMemory(), object(), object()
    with offer_memory(top, slot):
        with use_offered_memory(other):
            assert not writes_in_place()
        with use_offered_memory(top):
            assert writes_in_place()
        assert not writes_in_place()
    with use_offered_memory(top):
        assert not writes_in_place()
    slot.close()


def test_batches_of_a_pipeline_lie_in_their_slots():
    """A worker's default and padded batches are made in the slot, at its start."""
    for make, place in (
        (Pipeline.batch, True),
        (Pipeline.padded_batch, True),
        (lambda p, n: p.batch(n, collate=torchs), False),
    ):
        stage = make(Pipeline.range(8).map(lambda n: np.ones((64, 64))), 4)._stage.bind((1, 2))
        slot = ResultMemory()
        (batch,) = StageWork([stage], Draws(may_draw=False).run).compute(WorkerJob(0, 0, (0, 1)), slot)
        assert (slot.owns(batch.numpy()) == 0) == place
        slot.close()


def torchs(rows):
    return torchs_collate(rows)


def test_rows_of_different_shapes_are_an_error_that_names_the_batch():
    """The negative control of the collate's fast way: torch's own refusal, with the stage."""
    with pytest.raises(PipelineError, match="Pipeline.batch"):
        read(Pipeline.range(4).map(lambda n: np.zeros(n)).batch(2))
