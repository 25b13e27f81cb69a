"""Calls of Python functions, counted: a bound of the work that no clock and no chance decides."""

import sys


class TooManyCallsError(BaseException):
    pass


def counted(function, most):
    """The result of a call that makes at most so many Python calls."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"
        if calls > most:
            raise TooManyCallsError

    sys.setprofile(count)
    try:
        return function()
    finally:
        sys.setprofile(None)
