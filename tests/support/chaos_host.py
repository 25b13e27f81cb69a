"""Forks runs of a script from one process that has imported everything and done nothing, and tells where each run is.

python chaos_host.py SCRIPT: each line on stdin is a JSON request; a fork runs the script for it. The first line back is
its process id, the second its exit status. Where it stands is a byte and two numbers in a file that both sides map.
"""

import functools
import json
import mmap
import os
import struct
import sys

import sklearn.datasets
import sklearn.model_selection
import torch

import samebits
from samebits._context import CheckOverrides, Observer, observed
from samebits.audit._child.launch import execute
from samebits.audit._child.launch_spec import LaunchSpec
from samebits.audit._record.torch_hooks import TorchListener, torch_hooks

PHASES = ("start-up", "batch wait", "mid-step", "snapshot", "validation", "end")
LAYOUT = struct.Struct("<biii")  # phase, step, last durable step, process id of the run
torch.optim.SGD([torch.zeros(1)])  # imports what torch imports with its first optimizer


class Whereabouts(Observer, TorchListener):
    """Writes down where the run is; nothing else."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), LAYOUT.size)
        self.step, self.durable = -1, -1
        self.at("start-up")

    def at(self, phase):
        LAYOUT.pack_into(self.map, 0, PHASES.index(phase), self.step, self.durable, os.getpid())

    def run_opened(self, run):
        between = run.parts.saving.on_boundary

        def watched(*args, **kwargs):
            self.at("snapshot")
            between(*args, **kwargs)
            self.at("batch wait")

        run.parts.saving.on_boundary = watched

    def boundary(self, run, step, frame):
        self.step = step.step

    def committed(self, run, step):
        self.durable = step.step
        self.at("snapshot")

    def step_begins(self, run, step, batch, *, ends_epoch):
        self.at("mid-step")

    def forward(self, module, inputs, output, *, evaluates):
        if evaluates and self.step >= 0:
            self.at("validation")

    def run_closed(self, run, *, finished):
        self.at("end")


def run(script, request):
    """In the fork: a session of its own, output to a log, the script as `python SCRIPT ARGS`."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    watch = Whereabouts(request["whereabouts"])
    if request["save"] is not None:
        samebits.Run = functools.partial(samebits.Run, save=request["save"])
    commits = request["commit_steps"]
    overrides = CheckOverrides(commit_steps=None if commits is None else tuple(commits))
    spec = LaunchSpec(overrides=overrides, die_with_parent=True)
    with observed(watch), torch_hooks(watch):
        return execute(script, request["args"], spec)


def main():
    script = sys.argv[1]
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sys.exit(run(script, json.loads(line)))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
