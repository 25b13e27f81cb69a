"""Pipelines in real scripts: how workers come to be, and that nothing is left of them however the script ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timeout(240)

UNGUARDED = """
import sys, collections, dataclasses, numpy as np, torch, samebits
from samebits.data import Pipeline
torch.set_num_threads(2)
torch.rand(600, 600) @ torch.rand(600, 600), torch.rand(1 << 20).sum()   # OpenMP's threads are there now

@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str

Pair = collections.namedtuple("Pair", "a b")
offset = 3

def make(n):
    def inner(x):
        return x.sum() + offset
    return Sample(torch.randn(1 << 16).sum() + inner(torch.full((1 << 17,), n / 7)), f"number {n}")

class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return index

scale = 2.5
pipeline = (Pipeline.from_source(Data()).shuffle().map(make).map(lambda s: Pair(s, s.image * scale))
            .batch(4, collate=lambda rows: rows))
def read(**options):
    return [(type(p), type(p.a), p.a.image.item(), p.a.name, p.b.item()) for rows in pipeline.with_options(seed=1, **options) for p in rows]
alone = read()
for method in ("fork", "server"):
    got = read(num_parallel_calls=2, start_method=method)
    assert got == alone, (method, got[:3], alone[:3])
    assert got[0][0] is Pair and got[0][1] is Sample
samebits.enable_op_determinism()
samebits.set_random_seed(3)
switched = read()
for method in ("fork", "server"):
    assert read(num_parallel_calls=2, start_method=method) == switched, method
print("equal", len(alone))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_has_workers_of_both_kinds(python):
    """Functions, lambdas, closures and classes of a script, after OpenMP ran with two threads: the bits of no workers.

    With the switch on as well, which a server's workers turn on for themselves.
    """
    assert "equal 40" in python(UNGUARDED, timeout=200).stdout


LOOP = """
import sys, threading, time
from samebits.data import Pipeline
how, method = sys.argv[1:]
def work(n):
    time.sleep(100 if how == "stuck" and n == 24 else 0.001)
    return n
pipeline = Pipeline.range(10**6).map(work).batch(8).with_options(seed=1, num_parallel_calls=2, start_method=method)
made = []
if how == "thread":
    thread = threading.Thread(target=lambda: made.append(iter(pipeline)) or next(made[0]))
    thread.start()
    thread.join()
else:
    made.append(iter(pipeline))
next(made[0])
print("ready", flush=True)
sys.stdin.read(1)
if how == "exit":
    sys.exit(5)
if how == "error":
    raise ValueError("in the loop")
for _ in made[0]:
    pass
"""


def members(session):
    """The living processes of a session, without zombies."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, _, _, sid = file.read().rsplit(")", 1)[1].split()[:4]
            except OSError:
                continue
            if int(sid) == session and state not in "ZX":
                found.append(int(name))
    return found


@pytest.fixture
def ended(tmp_path):
    """Runs the loop, ends it in some way, and gives its exit code and errors once all its processes are gone."""
    running = []

    def run(how, method, sent=None, to_group=False):
        script = tmp_path / "loop.py"
        script.write_text(LOOP)
        started = subprocess.Popen(
            [sys.executable, str(script), how, method], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        running.append(started)
        assert started.stdout.readline() == "ready\n"
        while len(members(started.pid)) < (4 if method == "server" else 3):  # one may still be on its way
            assert started.poll() is None
            time.sleep(0.02)
        assert len(members(started.pid)) == (4 if method == "server" else 3)
        if sent is None:
            started.stdin.write("x"), started.stdin.close()
        elif to_group:
            started.stdin.write("x"), started.stdin.flush()
            time.sleep(0.2)
            os.killpg(started.pid, sent)
        else:
            os.kill(started.pid, sent)
        code = started.wait(100)
        deadline = time.monotonic() + 60
        while members(started.pid):
            assert time.monotonic() < deadline, "a process was left behind"
            time.sleep(0.02)
        return code, started.stderr.read()

    yield run
    for started in running:
        for pid in members(started.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "method", "sent", "to_group", "code", "says"),
    [
        ("exit", "fork", None, False, 5, ""),
        ("error", "server", None, False, 1, "ValueError: in the loop"),
        ("loop", "fork", signal.SIGINT, True, -2, "KeyboardInterrupt"),
        ("loop", "server", signal.SIGINT, True, -2, "KeyboardInterrupt"),
        ("loop", "fork", signal.SIGTERM, True, -15, ""),
        ("stuck", "fork", signal.SIGKILL, False, -9, ""),
        ("thread", "fork", signal.SIGKILL, False, -9, ""),
        ("loop", "server", signal.SIGKILL, False, -9, ""),
    ],
)
def test_nothing_is_left_however_a_script_ends(ended, how, method, sent, to_group, code, says):
    """sys.exit, an error, Ctrl-C, SIGTERM and SIGKILL leave no process (grain#1196), and workers add nothing to what is printed."""
    got, errors = ended(how, method, sent, to_group)
    assert got == code, errors
    assert says in errors and errors.count("Traceback") == (1 if says else 0), errors
