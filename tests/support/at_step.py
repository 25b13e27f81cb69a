"""An observer that acts at one event of one step of a run: a kill, a signal, or an error that ends the training."""

import os
import signal

from samebits._context import Observer


def sends(number):
    """The act of sending this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def ends():
    """Ends the training by an exception."""
    raise InterruptedError


class AtStep(Observer):
    """Acts at `boundary`, `step_begins`, `validation_begins`, `commit_writing` or `committed` of one step; it kills if `act` is not given."""

    def __init__(self, event, step, act=sends(signal.SIGKILL)):
        self.event, self.step, self.act = event, step, act

    def hit(self, event, step):
        if (event, step.step) == (self.event, self.step):
            self.act()

    def boundary(self, run, step, frame):
        self.hit("boundary", step)

    def step_begins(self, run, step, batch, *, ends_epoch):
        self.hit("step_begins", step)

    def validation_begins(self, run, step):
        self.hit("validation_begins", step)

    def commit_writing(self, run, step):
        self.hit("commit_writing", step)

    def committed(self, run, step):
        self.hit("committed", step)
