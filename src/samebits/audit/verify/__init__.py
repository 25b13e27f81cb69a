"""`samebits verify`: the checks, their processes, the verdict."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.audit.verify.child import Request as Request
    from samebits.audit.verify.children import SignalledError as SignalledError
    from samebits.audit.verify.jobs import jobs as jobs
    from samebits.audit.verify.table import show as show
    from samebits.audit.verify.verification import verify as verify

__getattr__, __dir__ = attach(
    __name__,
    names={
        "Request": "samebits.audit.verify.child",
        "SignalledError": "samebits.audit.verify.children",
        "jobs": "samebits.audit.verify.jobs",
        "show": "samebits.audit.verify.table",
        "verify": "samebits.audit.verify.verification",
    },
)
