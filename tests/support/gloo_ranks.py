"""Several real processes that torch.distributed connects by gloo: the fixture `ranks`, and `run_ranks` beneath it."""

import itertools
import os
import pickle
import signal
import traceback
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def first_optimizer():
    """Imports what torch imports with its first optimizer, once for all forked children."""
    import torch

    torch.optim.SGD([torch.zeros(1)])


@pytest.fixture
def ranks(tmp_path_factory, first_optimizer):
    """Runs a function on forked ranks, connected by gloo; returns what it returned on each, and how each ended.

    `code`: how they must all end, None: as they like (negative: the signal that killed it).
    """
    folder, numbers = tmp_path_factory.mktemp("ranks"), itertools.count()

    def run(world_size, work, *args, code=0):
        values, codes = run_ranks(folder / f"store{next(numbers)}", world_size, work, *args)
        if code is not None:
            assert codes == [code] * world_size
        return values, codes

    return run


def run_ranks(store, world_size, work, *args):
    """(what `work(*args)` returned on each rank, None where it did not; how each ended), by way of the file `store`."""
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            ended = 1
            try:
                ended = _rank(rank, world_size, store, work, args)
            finally:
                # No second pytest goes on. And an interpreter's end would meet gloo's threads at work: they abort it.
                os._exit(ended)
        pids.append(pid)
    try:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    except BaseException:  # the test's time is up
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        raise
    written = [Path(f"{store}.{rank}") for rank in range(world_size)]
    return [pickle.loads(path.read_bytes()) if path.exists() else None for path in written], codes


def _rank(rank, world_size, store, work, args):
    import torch
    import torch.distributed as dist

    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    try:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        value = work(*args)
        Path(f"{store}.{rank}").write_bytes(pickle.dumps(value))
        dist.barrier()
        return 0
    except SystemExit as error:
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
