"""The owner of a piece of code, and the user's line of a call.

Each file has one owner. Two questions depend on it, and the answers differ only for installed packages:

- Which state is the user's, so that it counts? That of an installed package is not (`is_library`).
- Where does a call come from? A line of an installed package counts, because the op is written there.
  Skipped are only the frames between that line and samebits: torch, NumPy, the standard library
  (`calling_frame`, `user_frames`).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from traceback import FrameSummary
from types import FrameType
from typing import Any, Literal, NamedTuple

from samebits._inspect.words import words

Owner = Literal["user", "samebits", "framework", "installed", "standard"]

_FRAMEWORK = ("torch", "triton", "numpy")
INSTALLED = ("framework", "installed")
_LIBRARIES = ("framework", "installed", "standard")
_PASSED_OVER = ("samebits", "framework", "standard")
_SITE = re.compile(r".*[/\\](site|dist)-packages(?=[/\\])")
_BACKWARD = "_engine_run_backward"
"""The one function of torch (torch/autograd/graph.py) that every backward goes through."""
_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n(?!\s*File ")\s*(.*)')


class Line(NamedTuple):
    """A line of a program: its file, number and text."""

    file: str
    number: int
    text: str


def _folders(paths: Iterable[str | None]) -> tuple[str, ...]:
    return tuple({os.path.join(os.path.realpath(path), "") for path in paths if path})


def _framework_folders() -> tuple[str, ...]:
    """Returns the folders of frameworks, also outside site-packages: torch may be built from source."""
    found = [importlib.util.find_spec(name) for name in _FRAMEWORK]
    return _folders(folder for spec in found if spec for folder in spec.submodule_search_locations or ())


_FOLDERS: tuple[tuple[Owner, tuple[str, ...]], ...] = (
    ("samebits", _folders([os.path.dirname(os.path.dirname(__file__))])),
    ("framework", _framework_folders()),
    ("installed", _folders(sysconfig.get_path(name) for name in ("purelib", "platlib", "scripts"))),
    ("standard", _folders([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")])),
)
"""In order: site-packages may be in the standard library's folder, and projects in the prefix."""


@functools.lru_cache(maxsize=65_536)  # more than a large program imports; each miss asks the disk
def owner_of_file(file: str) -> Owner:
    """Returns the owner of a file's code: the user for an editable install, a cell, `<stdin>`, `<string>`."""
    if file.startswith("<eval_with_key>"):  # the code of torch's graphs
        return "framework"
    if file.startswith("<"):
        return "standard" if file.startswith("<frozen") else "user"
    path = _real_path(file)
    owner: Owner = next((owner for owner, folders in _FOLDERS if path.startswith(folders)), "user")
    return "installed" if owner == "user" and _is_in_another_site(path, os.path.abspath(file)) else owner


def _real_path(file: str) -> str:
    """Returns `os.path.realpath(file)`; each folder is resolved once."""
    folder, name = os.path.split(file)
    if name in ("", ".", "..") or os.path.islink(file):
        return os.path.realpath(file)
    return os.path.join(_real_folder(folder), name)


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _is_in_another_site(path: str, name: str) -> bool:
    """Returns True below a site-packages that Python searches: the user's, Debian's, one of PYTHONPATH.

    Its contents may be links into a second one. A link to the user's own folder is the user's.
    """
    sites = [site[0] for site in (_SITE.match(path), _SITE.match(name)) if site]
    is_below_one = _SITE.match(path) is not None
    return is_below_one and not {*sys.path, *map(os.path.realpath, sys.path)}.isdisjoint(sites)


def owner_of_module(name: str) -> Owner | None:
    """Returns the owner of an imported module; None for one that is not imported or has no file."""
    root = name.partition(".")[0]
    if root in _FRAMEWORK:
        return "framework"
    if root in ("samebits", "__main__"):
        return "samebits" if root == "samebits" else "user"
    held = getattr(sys.modules.get(name), "__dict__", {})  # without the __getattr__ of a lazy module
    path = held.get("__path__", ())
    places = (held.get("__file__"), *(path if isinstance(path, Iterable) else ()))
    place = next((place for place in places if isinstance(place, str) and place), None)
    return None if place is None else owner_of_file(place)


def owner_of_frame(frame: FrameType) -> Owner:
    """Returns the owner of running code. Generated code belongs to the module whose global variables it has.

    torch.compile writes its code into a cache folder, as modules of torch.
    """
    name, file = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
    if name.partition(".")[0] in (*_FRAMEWORK, "samebits"):
        return owner_of_module(name) or "user"
    if file.startswith("<") and (owner := owner_of_file(file)) == "user":
        return owner_of_module(name) or owner
    return owner_of_file(file)


def is_library(file: str) -> bool:
    """Returns True if the code of this file is neither the user's nor samebits'."""
    return owner_of_file(file) in _LIBRARIES


@functools.lru_cache(maxsize=4096)
def is_user_type(kind: type) -> bool:
    """Returns True if instances of `kind` are the user's own objects, or samebits' holders of them.

    A class of samebits whose objects hold the user's says so by `__holds_user_objects__`.
    """
    owner = owner_of_module(kind.__module__)
    return owner == "user" or (owner == "samebits" and hasattr(kind, "__holds_user_objects__"))


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame and those around it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_frame() -> FrameType:
    """Returns the innermost frame outside of samebits, torch, NumPy and the standard library.

    In a backward it is the caller's. autograd runs a CUDA backward on a thread of its own, which has no frame
    of the user's: there it is the frame that waits in another thread for this backward.
    """
    here = sys._getframe(1)
    return _outside(here) or _waiting_for_backward() or here


def calling_line() -> str:
    return line_of_frame(calling_frame())


def line_of_frame(frame: FrameType) -> str:
    """Returns `file:line` of a frame, or `Cell In[3]:line` in a notebook."""
    return f"{cell_of(frame.f_code.co_filename) or frame.f_code.co_filename}:{frame.f_lineno}"


def cell_of(file: str) -> str | None:
    """Returns what IPython's tracebacks call a notebook's cell, "Cell In[3]"; None for another file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    found = None if shell is None else shell.compile.format_code_name(file)
    return None if found is None else " ".join(found)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of `calling_frame`, as `warnings.warn` does with the `stacklevel` of that frame."""
    frame = calling_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = str(frame.f_globals.get("__name__"))
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def user_frames(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """Returns the frames of a traceback without those of samebits, torch, NumPy and the standard library.

    Generated code without a source is left out, too: torch calls its tracer's `<string>`.
    """
    own = [frame for frame in frames if owner_of_file(frame.filename) not in _PASSED_OVER]
    return [frame for frame in own if frame.line or not frame.filename.startswith("<")]


def line_in(trace: str) -> Line | None:
    """Returns the innermost line of a traceback's text; None if there is none."""
    lines = _LINE.findall(trace)
    return Line(lines[-1][0], int(lines[-1][1]), lines[-1][2].strip()) if lines else None


def line_of_node(node: Any) -> str:
    """Returns the user's line that a node of a torch.fx graph comes from, as `file:line: text`."""
    line = line_in(node.meta.get("stack_trace") or "")
    return "no source line" if line is None else f"{os.path.basename(line.file)}:{line.number}: {line.text}"


def text_of_node(node: Any) -> str:
    """Returns the text of the user's line that a node comes from; empty if it is not known."""
    line = line_in(node.meta.get("stack_trace") or "")
    return "" if line is None else line.text


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame and owner_of_frame(frame) in _PASSED_OVER and frame.f_globals.get("__name__") != "threading":
        frame = frame.f_back
    return frame


def _waiting_for_backward() -> FrameType | None:
    for stack in sys._current_frames().values():
        for frame in outwards(stack):
            if frame.f_code.co_name == _BACKWARD:
                return _outside(frame)
    return None


_OUTPUT = words(
    """tqdm rich tensorboard tensorboardX wandb mlflow neptune comet_ml clearml aim swanlab loguru structlog
    matplotlib seaborn plotly bokeh altair PIL imageio pandas polars pyarrow tabulate colorama click typer
    omegaconf hydra yacs absl tokenizers sentencepiece tiktoken regex requests urllib3 fsspec huggingface_hub
    filelock psutil GPUtil pynvml prometheus_client google IPython ipykernel pytest _pytest hypothesis sympy
    numba llvmlite triton cv2"""
)
"""Packages that write others' results, read files, or compile: only what a program reads of them counts."""


@functools.lru_cache(maxsize=4096)
def may_hold_state(kind: type) -> bool:
    """Returns True if instances are of an installed package, and may hold state that training reads.

    torch, NumPy, Python's library and samebits have readers of their own.
    """
    return owner_of_module(kind.__module__) == "installed" and not is_output_package(kind.__module__)


_OWN_READERS = words(
    """autograd compiler cuda export fx hub jit library monitor multiprocessing onnx package profiler
    serialization testing utils"""
)
"""Modules of torch whose objects measure, compile or run programs, or are read in another way."""


@functools.lru_cache(maxsize=4096)
def keeps_attributes(kind: type) -> bool:
    """Returns True also for classes of torch and NumPy that keep state in attributes: `SobolEngine`."""
    root, _, rest = kind.__module__.partition(".")
    if root not in _FRAMEWORK or not kind.__dictoffset__:
        return may_hold_state(kind)
    parts = rest.split(".")
    return parts[0] not in _OWN_READERS or parts[:2] == ["utils", "data"]


def is_output_package(module: str) -> bool:
    """Returns True for a module of a package whose state reaches no weight unless the program reads it."""
    return module.partition(".")[0] in _OUTPUT


def is_table(kind: type) -> bool:
    root = kind.__module__.partition(".")[0]
    return root in {"pandas", "polars"} and kind.__name__ in {"DataFrame", "Series"}
