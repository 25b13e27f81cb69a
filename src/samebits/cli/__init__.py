"""The command `samebits`."""

from typing import TYPE_CHECKING

from samebits.cli.start import main as main
from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.cli import app as app
    from samebits.cli import commits_text as commits_text
    from samebits.cli import ops_text as ops_text
    from samebits.cli import raised as raised
    from samebits.cli import replica_text as replica_text
    from samebits.cli import selfcheck_text as selfcheck_text

__getattr__, __dir__ = attach(
    __name__, ["app", "commits_text", "ops_text", "raised", "replica_text", "selfcheck_text"]
)
