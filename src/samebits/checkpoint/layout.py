"""Where the tensors of a commit lie in its file, and how the manifest describes them: a function of names, dtypes and shapes."""

from __future__ import annotations

import json

from samebits.checkpoint import tensorfile


class Layout:
    """The file for tensors with `infos` (see `tensorfile.describe`; without digests)."""

    def __init__(self, infos: tensorfile.Infos) -> None:
        self.head, self.names = tensorfile.header(infos)
        """The head of the file, and the tensors in the order of their data."""
        self.spans: list[tuple[int, int]] = []
        """Where each begins and ends in the file."""
        end = len(self.head)
        for name in self.names:
            begin, end = end, end + tensorfile.nbytes(infos[name])
            self.spans.append((begin, end))
        self.size = end
        places = {name: place for place, name in enumerate(self.names)}
        self.order = [places[name] for name in sorted(infos)]
        self.pieces = _pieces(infos)


def _pieces(infos: tensorfile.Infos) -> list[str]:
    """The canonical JSON of infos with digests, cut where the digests belong ("digest" sorts before all other keys)."""
    texts = [
        f'{json.dumps(name)}:{{"digest":"\n",{json.dumps(infos[name], sort_keys=True, separators=(",", ":"))[1:]}'
        for name in sorted(infos)
    ]
    return ("{" + ",".join(texts) + "}").split("\n")
