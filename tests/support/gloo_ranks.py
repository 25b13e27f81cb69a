"""The fixture `ranks`: several real processes that torch.distributed connects by gloo."""

import itertools
import os
import pickle
import signal
import traceback
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def ranks(tmp_path_factory, monkeypatch):
    """Runs a function on forked ranks, connected by gloo; returns what it returned on each, and how each ended.

    `code`: how they must all end, None: as they like (negative: the signal that killed it).
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, numbers = tmp_path_factory.mktemp("ranks"), itertools.count()

    def run(world_size, work, *args, code=0):
        store = folder / f"store{next(numbers)}"
        pids = []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                ended = 1
                try:
                    ended = _rank(rank, world_size, store, work, args)
                finally:
                    os._exit(ended)  # whatever happens, no second pytest goes on
            pids.append(pid)
        try:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        except BaseException:  # the test's time is up
            for pid in pids:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            raise
        if code is not None:
            assert codes == [code] * world_size
        written = [Path(f"{store}.{rank}") for rank in range(world_size)]
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in written], codes

    return run


def _rank(rank, world_size, store, work, args):
    import torch
    import torch.distributed as dist

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
