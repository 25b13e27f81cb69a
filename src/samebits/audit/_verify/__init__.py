"""`samebits verify`: the checks, their processes, the verdict."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._verify.check_process import Request as Request
    from samebits.audit._verify.check_process import jobs as jobs
    from samebits.audit._verify.child_processes import SignalledError as SignalledError
    from samebits.audit._verify.verification import verify as verify
    from samebits.audit._verify.verify_table import show as show

__getattr__, __dir__ = attach(
    __name__,
    names={
        "Request": "samebits.audit._verify.check_process",
        "SignalledError": "samebits.audit._verify.child_processes",
        "jobs": "samebits.audit._verify.check_process",
        "show": "samebits.audit._verify.verify_table",
        "verify": "samebits.audit._verify.verification",
    },
)
