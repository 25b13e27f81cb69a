"""`samebits verify`: the checks, their processes, the verdict."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._verify.baseline import facts_of as facts_of
    from samebits.audit._verify.check_plan import GROUPS as GROUPS
    from samebits.audit._verify.check_plan import BaselineFacts as BaselineFacts
    from samebits.audit._verify.check_plan import ProcessVariation as ProcessVariation
    from samebits.audit._verify.check_process import ProcessOutcome as ProcessOutcome
    from samebits.audit._verify.check_process import Request as Request
    from samebits.audit._verify.check_process import Runner as Runner
    from samebits.audit._verify.check_process import jobs as jobs
    from samebits.audit._verify.child_processes import SignalledError as SignalledError
    from samebits.audit._verify.child_processes import scratch_folder as scratch_folder
    from samebits.audit._verify.report_files import junit as junit
    from samebits.audit._verify.report_files import markdown as markdown
    from samebits.audit._verify.verification import verify as verify
    from samebits.audit._verify.verification import verify_demo as verify_demo
    from samebits.audit._verify.verify_table import show as show

__getattr__, __dir__ = attach(__name__)
