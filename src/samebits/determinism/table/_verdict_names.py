"""The verdicts of the table, by which a person filters, from the best to the worst."""

from __future__ import annotations

OVER_THREADS = "deterministic over threads"
"""Equal from run to run and for any intra-op thread count."""
DETERMINISTIC = "deterministic"
"""Equal from run to run at a fixed thread count. On CUDA, which has no CPU threads, the best there is."""
ALTERNATIVE = "has an alternative here"
"""The switch installs a kernel of ours in front of torch's."""
SERIAL = "serial"
"""The same, and ours runs the whole op on one thread."""
UNWRITTEN = "unwritten"
"""Returns memory that was not written: its values are not reproducible until an op writes them."""
REFUSED = "refused"
"""Raises under the switch, for at least one ordinary argument: the reason names it."""
VARIES = "varies"
"""Varied from run to run, and nothing is in front of it: a gap."""
NO_KERNEL = "no kernel"
"""The op does not run on that device."""

NOT_REVIEWED = "not reviewed"
"""The running torch has the op, or a schema of it, and the table does not."""

OWN, REPLACED, COMPOSITE, ABSENT = "own", "replacement", "composite", "no kernel"
"""The deciding rule where no class rule decides."""

VERDICTS = (
    OVER_THREADS, DETERMINISTIC, ALTERNATIVE, SERIAL, UNWRITTEN, REFUSED, VARIES, NOT_REVIEWED, NO_KERNEL,
)  # fmt: skip
EVIDENCE = ("battery", "opinfo", "source", "none")
"""Measured by the battery, or with OpInfo's samples; read in torch's docs, tags, kernels; not checked."""
MACHINE = ("exact", "integers", "ours", "composed", "refused")
"""The CPU under `across="machines"`: torch's kernel, torch's for integers alone, ours, other ops, raises."""
OF_COMPLEX = "complex numbers"
RAISING = ("all", "all but integers", OF_COMPLEX)
"""The types for which an op raises there, for some arguments at least."""
DEVICES = ("cpu", "cuda")
