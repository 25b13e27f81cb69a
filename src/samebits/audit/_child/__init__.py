"""One process of a check, or of `samebits run`: launches, records, varies and kills a script."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._child import kill as kill
    from samebits.audit._child import launch as launch
    from samebits.audit._child import loader_workers as loader_workers
    from samebits.audit._child import perturb as perturb

__getattr__, __dir__ = attach(__name__, ["kill", "launch", "loader_workers", "perturb"])
