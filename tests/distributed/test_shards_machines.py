"""Ranks on CPUs of other kinds, and a rank that comes late: real processes with environments of their own."""

import os
import socket
import subprocess
import sys

import pytest

from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

BY_SHARDS = """
import sys
import torch, torch.distributed as dist
import samebits, shard_programs
torch.set_num_threads(1)
if int(sys.argv[2]) > 1:
    dist.init_process_group("gloo")
samebits.enable_op_determinism(across=sys.argv[1])
print("DIGEST", *(shard_programs.train(name, 2) for name in ("Convnet", "Transformer")))
"""

LATE = """
import time
from datetime import timedelta
import torch.distributed as dist
from samebits.distributed import _gloo_messages as messages
dist.init_process_group("gloo")
messages.REPORT_AFTER = timedelta(seconds=1)
group = messages.GlooGroup()
group.max_over_ranks([1], "at the begin")
if dist.get_rank() == 1:
    time.sleep(3)
assert group.max_over_ranks([group.rank], "in a test") == [1]
group.close()
"""


def outputs(root, program, *arguments, environments):
    """What the ranks of one job print, each with an environment of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    size = str(len(environments))
    where |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "OMP_NUM_THREADS": "1"}
    where["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root / "tests" / "support")])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments, size],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank), **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, own in enumerate(environments)
    ]
    texts = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(texts)
    return texts


def digests(root, across, *environments):
    texts = outputs(root, BY_SHARDS, across, environments=environments)
    return {line for text in texts for line in text.splitlines() if line.startswith("DIGEST")}


@pytest.mark.slow
def test_ranks_on_two_kinds_of_cpu_end_with_the_bits_of_one_process(root):
    """across="machines": rank 0 plays a CPU with AVX2, rank 1 is what it is, and one process has the same digest."""
    (alone,) = digests(root, "machines", {})
    assert digests(root, "machines", AVX2_ENVIRONMENT, {}) == {alone}


@pytest.mark.slow
def test_control_a_rank_without_vectors_gives_other_bits(root):
    """across="threads" does not promise them: where rank 0 has no vectors of 256 bits, the digest is another."""
    (alone,) = digests(root, "threads", {})
    assert alone not in digests(root, "threads", {"ATEN_CPU_CAPABILITY": "default"}, {})


def test_a_rank_that_waits_long_says_for_whom(root):
    """A wait of more than REPORT_AFTER prints one line with the rank and the place, and goes on."""
    waited, late = outputs(root, LATE, environments=({}, {}))
    line = "samebits: rank 0 has waited 1 s for the other ranks in a test."
    assert waited.count(line) == 1
    assert "has waited" not in late
