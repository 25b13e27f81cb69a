"""The positions of a commit's tensors in its file, and their entries in the manifest: a function of names, dtypes and shapes."""

from __future__ import annotations

import json
from itertools import count

from samebits.checkpoint import _safetensors_file as safetensors_file


class FileLayout:
    """The layout of the file for tensors with `infos` (see `_safetensors_file.describe`; without digests)."""

    def __init__(self, infos: safetensors_file.Infos) -> None:
        self.head, self.names = safetensors_file.header(infos)
        """The head of the file, and the tensors in the order of their data."""
        self.spans: list[tuple[int, int]] = []
        """First byte of each tensor in the file, and the first byte after it."""
        end = len(self.head)
        for name in self.names:
            begin, end = end, end + safetensors_file.nbytes(infos[name])
            self.spans.append((begin, end))
        self.size = end
        places = {name: place for place, name in enumerate(self.names)}
        self.order = [places[name] for name in sorted(infos)]
        self.pieces = _pieces(infos)
        self.number = next(_numbers)
        """Unique among the layouts of this process."""


_numbers = count(1)


def _pieces(infos: safetensors_file.Infos) -> list[str]:
    """Returns the canonical JSON of infos with digests, cut where the digests belong ("digest" sorts before all other keys)."""
    texts = [
        f'{json.dumps(name)}:{{"digest":"\n",{json.dumps(infos[name], sort_keys=True, separators=(",", ":"))[1:]}'
        for name in sorted(infos)
    ]
    return ("{" + ",".join(texts) + "}").split("\n")
