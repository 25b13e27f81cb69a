"""The results of the commands for a person: tables, or plain lines where it is no terminal."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits._progress import Progress as Progress
    from samebits.cli._reports import commits_report as commits_report
    from samebits.cli._reports import ops_overview as ops_overview
    from samebits.cli._reports import ops_report as ops_report
    from samebits.cli._reports import replica_report as replica_report

__getattr__, __dir__ = attach(__name__)
