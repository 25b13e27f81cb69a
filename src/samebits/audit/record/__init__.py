"""What a training step is made of, seen from outside and written down as digests."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.audit.record import file as file
    from samebits.audit.record import observe as observe
    from samebits.audit.record import reading as reading
    from samebits.audit.record import recorder as recorder

__getattr__, __dir__ = attach(__name__, ["file", "observe", "reading", "recorder"])
