"""torchrun's agents die and join while a run with shards goes on: at any number of processes its bits are those of one."""

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("elastic_program.py")
PATIENCE = 240


class Agent:
    """One machine's torchrun, with one rank, in a session of its own."""

    def __init__(self, folder, name, port, environment):
        self.log = folder / f"{name}.log"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1"),
            *("--max-restarts=50", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=x"),
            *("--rdzv-conf=last_call_timeout=2,join_timeout=200", "--monitor-interval=0.2"),
            *(str(PROGRAM), str(folder / "run"), "0.4"),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def count(self, size):
        """The starts with this number of ranks that made a step since."""
        return len(re.findall(rf"START of {size}\n", self.text()))

    def kill(self):
        """The machine is gone: the agent, and the rank that it started."""
        for pid in (self.process.pid, *self.children(self.process.pid)):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @staticmethod
    def children(pid):
        """The processes that a process has started."""
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
        return [int(one) for one in found.stdout.split()]


def until(condition, agents):
    """Waits for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "\n".join(agent.text()[-3000:] for agent in agents)
        time.sleep(0.2)


def train_while_agents_change(folder, environment):
    """2 agents, a third joins, it is killed: 2 -> 3 -> 2; returns the digests that the ranks end with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = [Agent(folder, name, port, environment) for name in ("a", "b")]
    try:
        until(lambda: agents[0].count(2) and "step" in agents[0].text() + agents[1].text(), agents)
        agents.append(Agent(folder, "c", port, environment))
        until(lambda: agents[2].count(3), agents)
        time.sleep(2)
        agents[2].kill()
        until(lambda: all("END" in agent.text() for agent in agents[:2]), agents)
        assert agents[0].count(2) >= 2 and agents[0].count(3) >= 1
        return {re.search(r"END (\w+)", agent.text())[1] for agent in agents[:2]}
    finally:
        for agent in agents:
            if agent.process.poll() is None:
                agent.kill()


def alone(folder, environment):
    """The digest of one process that nobody disturbed."""
    command = [sys.executable, PROGRAM, folder / "whole", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return re.search(r"END (\w+)", done.stdout)[1]


@pytest.fixture
def environment(root):
    """That of each agent."""
    paths = [root / "src", root / "tests" / "support"]
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.mark.chaos
def test_agents_that_die_and_join_leave_the_bits_alone(tmp_path, environment):
    """2 -> 3 -> 2 ranks: the digest is that of one process that nobody disturbed."""
    assert train_while_agents_change(tmp_path, environment) == {alone(tmp_path, environment)}


class Job:
    """One torchrun of several ranks on this machine."""

    def __init__(self, folder, ranks, environment):
        self.log = folder / f"{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(PROGRAM), str(folder / "run"), "0.05"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def is_over(self):
        return self.process.poll() is not None

    def kill(self):
        """torchrun, and the ranks that it started."""
        for pid in (self.process.pid, *Agent.children(self.process.pid)):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_30_kills_over_4_2_3_and_1_ranks(tmp_path, environment, soak):
    """Killed at random instants after a step, started with the next number of ranks: the digest of one process."""
    draw, expected, kills = random.Random(1), alone(tmp_path, environment), 0
    while kills < 30:
        folder = tmp_path / str(kills)
        folder.mkdir()
        for size, kills_left in zip(itertools.cycle((4, 2, 3, 1)), range(10, -1, -1), strict=False):
            job = Job(folder, size, environment)
            until(lambda job=job: "step" in job.text() or job.is_over(), [job])
            deadline = time.monotonic() + draw.uniform(0, 2)
            while not job.is_over() and (not kills_left or time.monotonic() < deadline):
                time.sleep(0.05)
            if not job.is_over():
                job.kill()
                kills += 1
                soak("kills of torchrun")
                continue
            assert {*re.findall(r"END (\w+)", job.text())} == {expected}, job.text()
            soak("runs that ended")
            break
