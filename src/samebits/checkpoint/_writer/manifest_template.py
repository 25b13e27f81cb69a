"""A manifest with placeholders for the tensors' digests and the parent's digest, which only the writer knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash


def digest(data: Any) -> str:
    """Returns the digest of `data`, as `samebits._digest.of_bytes`, which needs torch."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


class Commit(NamedTuple):
    """A commit that is durable."""

    step: int
    digest: str
    content: str
    """The digest that its manifest would have without a parent: equal where two commits have the same content."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.step:012d}-{self.digest.split(':')[1][:8]}"


class ManifestTemplate(NamedTuple):
    """The canonical JSON of a manifest, cut where the digests and the parent belong."""

    step: int
    before: str
    """Up to the value of "parent"."""
    middle: str
    """From there to the value of "tensors"."""
    after: str
    pieces: Sequence[str]
    """The value of "tensors"; between each two of them a digest belongs."""
    order: Sequence[int]
    """The tensor of each digest, by its place in the file."""

    @property
    def size(self) -> int:
        """An upper bound of the manifest's bytes."""
        texts = (self.before, self.middle, self.after, *self.pieces)
        return sum(map(len, texts)) + 41 * (len(self.order) + 3)

    def body(self, parent: str | None, digests: Sequence[str]) -> bytes:
        """Returns the JSON without the manifest's own digest; `digests` are in the order of the file."""
        tensors = "".join(
            piece + digests[place] for piece, place in zip(self.pieces, self.order, strict=False)
        )
        follows = "null" if parent is None else f'"{parent}"'
        return "".join((self.before, follows, self.middle, tensors, self.pieces[-1], self.after)).encode()

    def sign(self, parent: str | None, digests: Sequence[str]) -> tuple[Commit, bytes]:
        """Returns the commit, and the bytes of its manifest, in which the digest sorts first."""
        body = self.body(parent, digests)
        content = digest(body if parent is None else self.body(None, digests))
        own = digest(body)
        return Commit(self.step, own, content), b'{"digest":"' + own.encode() + b'",' + body[1:]
