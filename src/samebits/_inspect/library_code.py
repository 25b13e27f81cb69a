"""The owner of a function, class or object: is its code read, or is it a library's?"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from samebits._inspect.user_code import INSTALLED, owner_of_module

LIBRARIES = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "PIL", "cv2", "samebits", "scipy"}
"""Roots whose code is not read: `_program.effects` knows what their functions do."""
READ = ("torch.utils.data.dataset",)
"""Modules of theirs that are read all the same."""


def root(module: str | None) -> str:
    """The package of a module."""
    return (module or "").partition(".")[0]


def module_of(found: Any) -> str:
    """The module that a function, class or object's class belongs to."""
    module = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    if not isinstance(module, str):
        owner = getattr(found, "__objclass__", None) or getattr(found, "__self__", None)
        if isinstance(owner, ModuleType):
            return owner.__name__
        module = getattr(owner if isinstance(owner, type) else type(found), "__module__", None)
    return module if isinstance(module, str) else ""


def is_library_code(found: Any, home: str = "") -> bool:
    """Returns True if the code of this function or class is not read, but known.

    Code of installed packages is not read: it is large, and has memos and locks that matter to nobody.
    `home`: the package of the user's function, which is.
    """
    module = module_of(found)
    package = root(module)
    if package in LIBRARIES:
        return not module.startswith(READ) and not is_made_by_exec(found)
    return package != home and is_installed(package)


def is_made_by_exec(found: Any) -> bool:
    """Returns True if no module has a function's global variables: `exec` into a dict says `builtins`."""
    own = getattr(found, "__globals__", None)
    if own is None:
        return False
    module = sys.modules.get(own.get("__name__") or "")
    return module is None or vars(module) is not own


@functools.cache
def is_installed(package: str) -> bool:
    """True if a package is where packages are installed."""
    return owner_of_module(package) in INSTALLED
