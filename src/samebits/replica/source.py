"""The user's own line that a node of a graph comes from."""

from __future__ import annotations

import re

from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)')


def text_of(node: Node) -> str:
    """The text of the innermost line of the user's code, wherever it stands; empty if it is not known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return frames[-1][2].strip() if frames else ""


def line_of(node: Node) -> str:
    """The innermost line of the user's code as `file:line: text`; empty brackets of what tracing lost are avoided."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return "no source line"
    file, line, text = frames[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line}: {text.strip()}"
