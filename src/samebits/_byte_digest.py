"""The digest of bytes: xxh3-128. It needs neither torch nor NumPy, and the writer process has it, too."""

from __future__ import annotations

from typing import Any

import xxhash


def of_bytes(*parts: Any) -> str:
    """Returns the digest of the concatenated bytes of `parts` (C-contiguous arrays), as `xxh3-128:hex`."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
    return f"xxh3-128:{hasher.hexdigest()}"
