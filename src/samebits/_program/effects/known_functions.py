"""The known facts of libraries: functions that draw, that change their arguments, or that pass them on."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch

from samebits._inspect.library_code import module_of, root
from samebits._inspect.words import words
from samebits._objects.rng_states import RESTORABLE
from samebits._program.vocabulary import NAMES

_QUIET_MODULES = words(
    "array base64 binascii bisect builtins bz2 cmath collections colorsys contextlib copy csv dataclasses "
    "datetime decimal enum errno fractions functools glob gzip hashlib heapq html io itertools json "
    "linecache logging lzma math mmap numbers operator os pathlib posix posixpath re stat string struct "
    "tarfile textwrap time typing types unicodedata urllib warnings wave zipfile zlib _bisect _collections "
    "_csv _functools _heapq _io _json _operator _struct _thread _weakref threading weakref abc sys "
    "genericpath ntpath uuid tempfile PIL cv2 samebits traceback inspect shutil fnmatch _datetime "
    "_decimal _hashlib _sha2 _md5 _blake2 _random xml sqlite3"
)
"""They draw from no generator of the process (uuid, tempfile: from the system, or their own)."""

_LOUD_BUILTINS = frozenset({"exec", "eval", "compile", "__import__", "input", "breakpoint"})

_OWN_GENERATORS = words(
    "default_rng Generator Philox PCG64 PCG64DXSM MT19937 SFC64 SeedSequence RandomState BitGenerator"
)
"""Of numpy.random: they make a generator, and leave the process's alone."""

_TORCH_DRAWS = NAMES | words(
    "seed manual_seed initial_seed set_rng_state get_rng_state multi_head_attention_forward lobpcg "
    "compile vmap"
)
"""That draw, or call what they are given, whatever their aten ops' tags say."""
_TORCH_PYTHON = words(
    "default_collate default_convert einsum meshgrid broadcast_tensors split unique unique_consecutive norm "
    "cdist stft tensordot cartesian_prod block_diag atleast_1d atleast_2d atleast_3d pad interpolate one_hot "
    "normalize relu softmax log_softmax sigmoid tanh gelu silu grid_sample affine_grid unfold fold "
    "max_pool2d avg_pool2d conv1d conv2d conv3d is_tensor is_floating_point cross_entropy mse_loss "
    "adaptive_avg_pool2d cosine_similarity no_grad inference_mode get_worker_info device Size finfo iinfo "
    "dtype clip_grad_norm_ issubclass"
)
"""Functions of torch that are written in Python, and draw nothing."""

_TORCH_BUILTINS = words("tensor as_tensor from_numpy frombuffer is_tensor get_num_threads get_default_dtype")
"""Of torch, written in C, that are no aten ops and draw nothing."""

RANDOM_METHODS = NAMES | words("seed manual_seed apply applymap map_ map2_ register_hook resample")
"""Names of methods that draw, or that call what they are given."""


_KINDS: tuple[type, ...] = (
    np.ndarray, np.generic, torch.Tensor, str, bytes, bytearray, list, dict, tuple, set, frozenset, int,
    float, complex, memoryview, range
)  # fmt: skip
_IMAGES = words(
    "convert crop resize rotate transpose paste filter getpixel putpixel split point thumbnail getbbox "
    "quantize load"
)
"""Of PIL's images, which need not be installed."""
METHODS = frozenset(name for kind in _KINDS for name in dir(kind)).union(_IMAGES, RANDOM_METHODS)
"""Methods of arrays, tensors, images and Python's own types: all but `RANDOM_METHODS` draw nothing."""


def is_keyed(kind: type) -> bool:
    """Returns True for generators that are set for each element: those of the system cannot be."""
    return issubclass(kind, RESTORABLE) and not issubclass(kind, random.SystemRandom)


def has_quiet_methods(kind: type) -> bool:
    """Returns True if the methods of a library's class draw nothing, but for those of `RANDOM_METHODS`."""
    package = root(kind.__module__)
    if package == "torch":
        return issubclass(kind, torch.Tensor | torch.Size | torch.device | torch.dtype)
    return package in ("builtins", "numpy") or package in _QUIET_MODULES


def is_quiet(function: Any) -> bool:
    """Returns True if a library's function draws from no process generator and calls nothing unknown."""
    module, name = module_of(function), getattr(function, "__name__", type(function).__name__)
    if isinstance(function, np.ufunc):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, RESTORABLE):
        return False
    if root(module) == "numpy":
        return (
            not module.startswith(("numpy.random", "numpy.testing", "numpy.f2py")) or name in _OWN_GENERATORS
        )
    if root(module) in ("torch", "_VariableFunctions"):
        return _torch_is_quiet(function, name)
    if root(module) == "random":
        return isinstance(function, type)  # Random(), SystemRandom(): generators of one's own
    if root(module) == "builtins":
        return name not in _LOUD_BUILTINS
    return root(module) in _QUIET_MODULES and name not in ("urandom", "getrandom")


@functools.cache
def _torch_is_quiet(function: Any, name: str) -> bool:
    if name in _TORCH_DRAWS or name.startswith("rand"):
        return False
    if name in _TORCH_PYTHON or isinstance(function, torch.dtype):
        return True
    if isinstance(function, type):
        kinds = (torch.Tensor, torch.Size, torch.device, torch.Generator)
        return function in kinds or function.__name__ in _TORCH_PYTHON
    if type(function).__name__ != "builtin_function_or_method":
        return False
    ops = getattr(torch.ops.aten, name, None)
    if ops is None:
        return name in _TORCH_BUILTINS
    return not any(torch.Tag.nondeterministic_seeded in getattr(ops, form).tags for form in ops.overloads())


CHANGING = words(
    "append extend insert pop remove clear sort reverse update popitem setdefault add discard "
    "difference_update intersection_update symmetric_difference_update appendleft extendleft popleft rotate "
    "subtract move_to_end fill put partition resize setflags setfield itemset put_nowait get_nowait write "
    "writelines read readline readlines seek truncate close send throw __setitem__ __delitem__ __setattr__ "
    "__delattr__ __next__ __iadd__ frombytes fromlist step paste putpixel putdata reset commit execute set"
)
"""Methods that change their object, of whatever library's class it is."""
CHANGING_FIRST = words(
    "setattr delattr next heappush heappop heapify heapreplace heappushpop insort insort_left insort_right "
    "shuffle copyto place putmask fill_diagonal put setitem delitem iadd isub imul iconcat ior iand ixor "
    "pop_at readinto rename"
)
"""Functions that change their first argument."""
HANDING_ON = words(
    "asarray asanyarray ascontiguousarray atleast_1d atleast_2d atleast_3d ravel reshape squeeze transpose "
    "broadcast_to moveaxis swapaxes rollaxis expand_dims flip rot90 from_numpy as_tensor frombuffer "
    "as_strided view view_as narrow select unsqueeze permute expand expand_as flatten contiguous detach "
    "numpy cpu movedim t T mT H real imag data flat chunk split unbind diagonal tensor_split array_split "
    "hsplit vsplit dsplit as_subclass require memoryview getattr identity __enter__ __iter__ iter max min "
    "next reduce get pop setdefault values items keys __getitem__ popitem popleft list tuple sorted "
    "enumerate zip reversed map filter dict set frozenset islice chain cycle from_iterable copy union "
    "nlargest nsmallest deque OrderedDict defaultdict Counter"
)
"""Functions whose result may be what they were given, share its memory, or hold it.

(`astype`, `to`, `float` copy as a rule: a change in place behind one that does not is left to the check of
captured state.)"""
CONTAINERS = words(
    "list tuple sorted enumerate zip reversed map filter dict set frozenset islice chain cycle from_iterable "
    "copy union values items keys get pop setdefault popitem popleft __getitem__ max min next reduce iter "
    "nlargest nsmallest deque OrderedDict defaultdict Counter chunk split unbind"
)
"""Functions whose result holds what their arguments hold, but is another object."""
TAKING_OUT = words("get pop setdefault popitem popleft __getitem__ max min next reduce")
"""Of these, what they return is what is held."""
LASTING_CALLS = words(
    "open remove unlink rename replace makedirs mkdir rmdir rmtree symlink link truncate putenv"
)
"""Functions of builtins, os, io and shutil that leave something behind (open: if it is for writing)."""
