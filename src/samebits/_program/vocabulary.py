"""The one vocabulary: names of functions and methods that draw, put out, read, collect, calculate or train.

A name that is absent among the draws counts as harmless: so Python's and NumPy's are read from their classes,
and a test compares torch's with the tags and the generators of its operators.
"""

from __future__ import annotations

import ast
import random

import numpy as np

from samebits._inspect.words import words
from samebits._program.sources import called, last_name, root_of

_NO_DRAWS = words("VERSION bit_generator spawn seed getstate setstate get_state set_state default_rng")
_OF_TORCH = words(
    """alpha_dropout bernoulli binomial cauchy dropout exponential feature_alpha_dropout feature_dropout
    fractional_max_pool2d fractional_max_pool3d geometric gru gumbel_softmax log_normal lstm multinomial
    native_dropout normal poisson rand rand_like randint randint_like randn randn_like random randperm
    rnn_relu rnn_tanh rrelu rrelu_with_noise scaled_dot_product_attention uniform miopen_rnn
    rrelu_with_noise_functional normal_functional inductor_reserve_rng_state"""
)
"""Each may have an underscore at its end: a method that fills a tensor."""
_PYTHON_OF_TORCH = words(
    """dropout1d dropout2d dropout3d pca_lowrank svd_lowrank random_split rsample sample sample_n
    kaiming_normal_ kaiming_uniform_ orthogonal_ sparse_ trunc_normal_ xavier_normal_ xavier_uniform_"""
)
_OF_THE_SYSTEM = words("urandom getrandom randbelow token_bytes token_hex token_urlsafe uuid1 uuid4")
_OF_MODULES = [
    name
    for name in np.random.__all__
    if callable(one := getattr(np.random, name)) and not isinstance(one, type)
]
_PLAIN = {
    *(name for kind in (random.Random, np.random.Generator, np.random.RandomState) for name in dir(kind)),
    *_OF_MODULES, *_OF_TORCH, *_PYTHON_OF_TORCH, *_OF_THE_SYSTEM,
}  # fmt: skip
NAMES = frozenset(
    form for name in _PLAIN - _NO_DRAWS if name[0] != "_" for form in (name, f"{name.rstrip('_')}_")
)
"""With and without an underscore at the end."""
AMBIGUOUS = words("f bytes power gamma beta")
"""Draws of NumPy's generators, and words for other things: they count as methods, not of these:"""
_CALCULATES = words("np numpy math cmath operator special scipy torch F")


def is_draw(name: str, owner: str = "") -> bool:
    """Returns True if a call of `owner.name` may draw: "random" and "power" of `np.random.power`."""
    return name in NAMES and not (name in AMBIGUOUS and (not owner or owner in _CALCULATES))


OUTPUT = words(
    """print pprint info debug warning error critical exception write writelines writerow writerows flush log
    log_metrics log_metric log_scalar set_postfix set_postfix_str set_description set_description_str
    add_scalar add_scalars add_text add_histogram add_image add_figure record_metric refresh update_progress
    advance display echo secho rule plot scatter hist imshow bar set_title title xlabel ylabel savefig savetxt
    to_csv to_json execute executemany executescript commit observe inc"""
)
"""Names of functions and methods that bring a value out of the program and change nothing in it."""
COLLECTS = words("append appendleft extend insert add update setdefault put push count increment")
"""Methods that put their argument into the object: its uses count."""
KEEPS = words("append appendleft extend insert add put")
FILLS = words("append appendleft extend insert add update clear")
CONTAINERS = words("list dict set deque defaultdict Counter OrderedDict")
NUMBERS = words("float int len str round bool item tolist format")
"""Functions and methods whose results are numbers and texts."""
ARITHMETIC = words(
    """abs bool dict divmod enumerate float format frozenset int iter len list max min next pow range repr
    reversed round set sorted str sum tuple type zip isinstance hasattr any all Counter deque defaultdict
    namedtuple DataFrame Series"""
)
LIBRARIES = words(
    "math np numpy torch statistics datetime timedelta time json os pd tabulate humanize textwrap"
)
NAMESPACES = words("SimpleNamespace Namespace parse_args tqdm trange track Progress SummaryWriter DataFrame")
"""Makers of objects whose attributes only the program, or an output, reads."""
OUTPUT_MODULES = words("wandb mlflow neptune comet_ml logging plt tqdm rich pd pandas")
FETCHERS = "Sampler", "Dataset", "Loader"
"""Ends of the names of classes that fetch batches by their attributes."""
PLAIN_BASES = words("Sampler Dataset IterableDataset MapDataset")
"""Bases of these that have no attributes of their own."""
CALCULATE = words("sklearn scipy math statistics numpy")
READS = words(
    """item mean sum std min max abs detach cpu numpy tolist float int double clone keys values items get copy
    format join split strip lower upper startswith endswith ljust rjust center zfill encode replace round
    total_seconds strftime isoformat elapsed most_common index norm size numel dim argmax read getvalue rate
    perf_counter time monotonic now"""
)
"""Methods that return a value and change nothing."""
ITERATES = words(
    "parameters named_parameters buffers named_buffers modules named_modules children state_dict"
)
"""Methods of a module that change nothing, and return what is trained."""
QUIET = OUTPUT | READS | COLLECTS | {"reset", "clear", "super"}
CHANGES = words("seed manual_seed initial_seed save load copyto put place putmask fill_diagonal")
"""Functions of libraries that change something."""
REFLECTS = words("vars asdict astuple getattr __dict__ __getstate__")
CLOCKS = words(
    """time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time thread_time now utcnow
    default_timer elapsed_time"""
)
TRAINED = words("param_groups state data grad requires_grad weight bias")
"""Attributes of what is trained."""
TRAINS = words("backward step unscale_ apply copy_to load_state_dict restore swap")
"""Methods that change what is trained."""
RATES = words("lr momentum weight_decay")
"""Keys of numbers in an optimizer's groups."""
OF_SHAPE = words(
    "shape ndim device dtype layout is_cuda requires_grad size dim numel ndimension get_device stride"
)
"""Attributes and methods whose results do not depend on a tensor's numbers."""
LIKE = words("len isinstance type zeros_like ones_like empty_like new_zeros new_ones new_empty hasattr")
"""Calls whose results depend on the kind and the shape of their arguments alone."""
COPIES = words("deepcopy clone detach state_dict parameters named_parameters item")
"""Functions that take a copy of what is trained."""
FED_METHODS = words("forward __call__ training_step on_batch_end __getitem__")
"""Methods that get a batch, or what was computed from it, and whose calls do not show their name."""
PLAIN_TYPES = words("int str bool device dtype Size")


def is_number(node: ast.expr) -> bool:
    """Returns True for a text, a number of Python, and a rate of an optimizer."""
    if isinstance(node, ast.Subscript):  # `optimizer.param_groups[0]["lr"]`, `scheduler.get_last_lr()[0]`
        key, held = node.slice, node.value
        rate = isinstance(key, ast.Constant) and key.value in RATES
        return rate or (isinstance(held, ast.Call) and called(held) == "get_last_lr")
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and called(node) in NUMBERS)


def draws(call: ast.Call) -> bool:
    owner = (last_name(call.func.value) or "?") if isinstance(call.func, ast.Attribute) else ""
    return is_draw(called(call), owner)


def is_arithmetic(call: ast.Call) -> bool:
    name = called(call)
    if draws(call) or name in CHANGES or name.endswith("_") or name.startswith("set_"):
        return False
    if isinstance(call.func, ast.Attribute):
        return root_of(call.func) in LIBRARIES and not {"out"} & {one.arg for one in call.keywords}
    return name in ARITHMETIC
