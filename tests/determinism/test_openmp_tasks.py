import os
import threading

import pytest
import torch

from samebits.determinism._kernels import openmp_tasks


def test_results_are_in_the_order_of_the_tasks():
    """Whatever thread takes a task, its result stands where the task stood, for any number of threads."""
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        assert openmp_tasks.run([lambda i=i: i * i for i in range(20)]) == [i * i for i in range(20)]
        assert openmp_tasks.run([]) == []


def test_tasks_use_one_thread_and_run_side_by_side():
    """Each task sees one torch thread, and two tasks that wait for each other do meet."""
    torch.set_num_threads(2)
    meeting = threading.Barrier(2, timeout=200)

    def task():
        meeting.wait()
        return torch.get_num_threads(), threading.get_ident()

    (a, first), (b, second) = openmp_tasks.run([task, task])
    assert a == b == 1
    assert first != second
    assert torch.get_num_threads() == 2


def test_no_thread_that_starts_meanwhile_takes_over_our_one_thread(python):
    """A user's thread that first asks torch while tasks run, and after, gets the user's number, not 1."""
    python(
        "import threading, torch\n"
        "from samebits.determinism._kernels import openmp_tasks as workers\n"
        "from samebits._native import torch_threads as openmp\n"
        "torch.set_num_threads(3)\n"
        "seen = []\n"
        "def fresh():\n"
        "    t = threading.Thread(target=lambda: seen.append(torch.get_num_threads())); t.start(); t.join()\n"
        "workers.run([fresh] * 4)\n"
        "with openmp.single_thread():\n"
        "    assert torch.get_num_threads() == 1\n"
        "    fresh()\n"
        "fresh()\n"
        "assert torch.get_num_threads() == 3\n"
        "assert seen == [3] * 6, seen\n"
    )


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_exception_of_a_task_is_raised_and_threads_are_put_back(threads):
    """A task's own exception comes out of `run`, no further tasks are begun, and the thread count is the user's."""
    torch.set_num_threads(threads)
    begun = []

    def task(i):
        begun.append(i)
        if i == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        openmp_tasks.run([lambda i=i: task(i) for i in range(1000)])
    assert len(begun) < 1000
    assert torch.get_num_threads() == threads


def test_tasks_see_no_autograd_and_the_inference_mode_of_the_caller():
    """Ops of a task record no graph; tensors made under inference mode are inference tensors, and only those."""
    torch.set_num_threads(2)
    weight = torch.ones(3, requires_grad=True)
    assert not any(t.requires_grad for t in openmp_tasks.run([lambda: weight * 2] * 4))
    with torch.inference_mode():
        assert all(t.is_inference() for t in openmp_tasks.run([lambda: torch.ones(2)] * 4))
    assert not any(t.is_inference() for t in openmp_tasks.run([lambda: torch.ones(2)] * 4))


def test_denormals_are_flushed_on_every_thread_or_on_none(python):
    """`set_flush_denormal` is a setting of one thread; the tasks follow their caller, on whatever thread."""
    python(
        "import torch\n"
        "from samebits.determinism._kernels import openmp_tasks as workers\n"
        "torch.set_num_threads(4)\n"
        "tiny = torch.full((64,), 1e-39)\n"
        "def zeros(): return int((tiny * 1.0 == 0).sum())\n"
        "workers.run([zeros] * 16)\n"
        "for flush in (True, False, True):\n"
        "    torch.set_flush_denormal(flush)\n"
        "    assert set(workers.run([zeros] * 16)) == {64 if flush else 0}\n"
    )


def test_several_user_threads_at_once():
    """Threads of the user that run tasks at the same time each get their own results."""
    torch.set_num_threads(2)
    found = {}

    def user(n):
        torch.set_num_threads(2)
        found[n] = [openmp_tasks.run([lambda i=i: (n, i) for i in range(10)]) for _ in range(20)]

    threads = [threading.Thread(target=user, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join(30) for t in threads]
    assert found == {n: [[(n, i) for i in range(10)]] * 20 for n in range(4)}


def test_a_forked_child_with_one_thread_runs_its_tasks_itself():
    """After a fork (a DataLoader's worker has one thread) tasks run, though the parent's threads are not there."""
    torch.set_num_threads(2)
    openmp_tasks.run([lambda: torch.ones(3).sum()] * 4)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        os._exit(0 if openmp_tasks.run([lambda i=i: i for i in range(4)]) == [0, 1, 2, 3] else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_nothing_is_left_at_exit(python):
    """A process that ran tasks ends at once; it has no Python thread of ours."""
    python(
        "import threading, torch\n"
        "from samebits.determinism._kernels import openmp_tasks as workers\n"
        "torch.set_num_threads(3)\n"
        "workers.run([lambda: torch.ones(1000).sum()] * 9)\n"
        "assert threading.active_count() == 1\n",
        timeout=60,
    )
