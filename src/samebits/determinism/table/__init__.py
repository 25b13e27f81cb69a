"""The op table: a verdict for every aten overload on CPU and CUDA. Not imported by the switch; read in 20 ms.

from samebits.determinism import table
table.lookup("aten::sum.dim_IntList", "cpu").verdict
"""

from samebits.determinism.table.snapshot import reviewed as reviewed
from samebits.determinism.table.verdicts import Entry as Entry
from samebits.determinism.table.verdicts import entries as entries
from samebits.determinism.table.verdicts import lookup as lookup
