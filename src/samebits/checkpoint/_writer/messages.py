"""The messages between a run and its writer process: records of a fixed size one way, lines of JSON the other.

A snapshot is in a slot, a file without a name that both have mapped: the image of the tensor file, then the data for the
manifest. Its record goes into a pipe that both may read, and only one process gets it: so the run withdraws a snapshot
that the writer has not begun by reading its record.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SLOTS = 3
"""One being written, one waiting, one to fill."""


class SnapshotMessage(NamedTuple):
    """One snapshot: its number, its slot, and the lengths of its parts, in their order there."""

    number: int
    slot: int
    step: int
    layout: int
    """Snapshots of the same layout have the same `static`."""
    image: int
    static: int
    before: int
    middle: int
    after: int
    facts: int

    @property
    def size(self) -> int:
        """Bytes that it takes in the slot."""
        return sum(self[4:])


PACKED = struct.Struct(f"<{len(SnapshotMessage._fields)}Q")
END = SnapshotMessage(*[0] * len(SnapshotMessage._fields))
"""The last message: the run needs no writer any more."""
