"""The op table: a verdict for every aten overload on CPU and CUDA. Not imported by the switch; read in 20 ms.

from samebits.determinism import table
table.lookup("aten::sum.dim_IntList", "cpu").verdict
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.determinism.table import _torch_names as _torch_names
    from samebits.determinism.table._overload_facts import reviewed as reviewed
    from samebits.determinism.table._torch_names import ops_of as ops_of
    from samebits.determinism.table._verdicts import Entry as Entry
    from samebits.determinism.table._verdicts import entries as entries
    from samebits.determinism.table._verdicts import lookup as lookup
    from samebits.determinism.table._verdicts import refused_parts as refused_parts

__getattr__, __dir__ = attach(__name__)
