"""The command `samebits`."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach
from samebits.cli._start import main as main

if TYPE_CHECKING:
    from samebits.cli import _app as _app
    from samebits.cli import _reports as _reports
    from samebits.cli import _user_errors as _user_errors

__getattr__, __dir__ = attach(__name__, ["_app", "_reports", "_user_errors"])
