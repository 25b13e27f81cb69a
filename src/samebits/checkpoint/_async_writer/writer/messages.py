"""What a run and its writer process tell each other: records of a fixed size one way, lines of JSON the other.

A snapshot lies in a slot, a file without a name that both have mapped: the image of the tensor file, then what the
manifest needs. Its record goes into a pipe that both may read: whoever reads it has it, so the run takes back a
snapshot that the writer has not begun, by reading.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SLOTS = 3
"""One being written, one waiting, one to fill."""


class SnapshotMessage(NamedTuple):
    """One snapshot: its number, where it lies, and how long its parts are, in the order in which they lie there."""

    number: int
    slot: int
    step: int
    plan: int
    """Snapshots of the same plan have the same `static`."""
    image: int
    static: int
    before: int
    middle: int
    after: int
    facts: int

    @property
    def size(self) -> int:
        """Bytes of the slot that it takes."""
        return sum(self[4:])


PACKED = struct.Struct(f"<{len(SnapshotMessage._fields)}Q")
END = SnapshotMessage(*[0] * len(SnapshotMessage._fields))
"""No snapshot: the run needs no writer any more."""
