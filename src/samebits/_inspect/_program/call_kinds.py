"""The kinds of functions and methods by their names: output, reading, arithmetic, draws, training."""

from __future__ import annotations

import ast

from samebits._inspect._program.syntax import called, root_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OUTPUT = _words(
    """print pprint info debug warning error critical exception write writelines writerow writerows flush log
    log_metrics log_metric log_scalar set_postfix set_postfix_str set_description set_description_str
    add_scalar add_scalars add_text add_histogram add_image add_figure record_metric refresh update_progress
    advance display echo secho rule plot scatter hist imshow bar set_title title xlabel ylabel savefig savetxt
    to_csv to_json execute executemany executescript commit observe inc"""
)
"""Names of functions and methods that bring a value out of the program and change nothing in it."""
COLLECTS = _words("append appendleft extend insert add update setdefault put push count increment")
"""Methods that put their argument into the object: its uses count."""
KEEPS = _words("append appendleft extend insert add put")
FILLS = _words("append appendleft extend insert add update clear")
CONTAINERS = _words("list dict set deque defaultdict Counter OrderedDict")
NUMBERS = _words("float int len str round bool item tolist format")
"""Functions and methods whose results are numbers and texts."""
ARITHMETIC = _words(
    """abs bool dict divmod enumerate float format frozenset int iter len list max min next pow range repr
    reversed round set sorted str sum tuple type zip isinstance hasattr any all Counter deque defaultdict
    namedtuple DataFrame Series"""
)
LIBRARIES = _words(
    "math np numpy torch statistics datetime timedelta time json os pd tabulate humanize textwrap"
)
CALCULATE = _words("sklearn scipy math statistics numpy")
READS = _words(
    """item mean sum std min max abs detach cpu numpy tolist float int double clone keys values items get copy
    format join split strip lower upper startswith endswith ljust rjust center zfill encode replace round
    total_seconds strftime isoformat elapsed most_common index norm size numel dim argmax read getvalue rate
    perf_counter time monotonic now"""
)
"""Methods that return a value and change nothing."""
QUIET = OUTPUT | READS | COLLECTS | {"reset", "clear", "super"}
_RANDOM = _words(
    """rand randn randint randperm random normal uniform choice choices sample shuffle permutation bernoulli
    multinomial dropout integers standard_normal gauss rand_like randn_like randint_like"""
)
DRAWS = _RANDOM | _words(
    """beta gamma exponential poisson seed manual_seed initial_seed save load copyto put place putmask
    fill_diagonal"""
)
"""Functions of libraries that draw, or that change something."""
REFLECTS = _words("vars asdict astuple getattr __dict__ __getstate__")
TRAINED = _words("param_groups state data grad requires_grad weight bias")
"""Attributes of what is trained."""
TRAINS = _words("backward step unscale_ apply copy_to load_state_dict restore swap")
"""Methods that change what is trained."""
RATES = _words("lr momentum weight_decay")
"""Keys of numbers in an optimizer's groups."""
OF_SHAPE = _words(
    "shape ndim device dtype layout is_cuda requires_grad size dim numel ndimension get_device stride"
)
"""Attributes and methods whose results do not depend on a tensor's numbers."""
LIKE = _words("len isinstance type zeros_like ones_like empty_like new_zeros new_ones new_empty hasattr")
"""Calls whose results depend on the kind and the shape of their arguments alone."""
DRAWS_OR_COPIES = _RANDOM | _words(
    """bernoulli_ normal_ uniform_ random_ deepcopy clone detach state_dict parameters named_parameters
    item"""
)
"""Functions that draw, and those that take a copy of what is trained."""
FED_METHODS = _words("forward __call__ training_step on_batch_end __getitem__")
"""Methods that get a batch, or what was computed from it, and whose calls do not show their name."""
PLAIN_TYPES = _words("int str bool device dtype Size")


def is_number(node: ast.expr) -> bool:
    """Returns True for a text, a number of Python, and a rate of an optimizer."""
    if isinstance(node, ast.Subscript):  # `optimizer.param_groups[0]["lr"]`, `scheduler.get_last_lr()[0]`
        key, held = node.slice, node.value
        rate = isinstance(key, ast.Constant) and key.value in RATES
        return rate or (isinstance(held, ast.Call) and called(held) == "get_last_lr")
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and called(node) in NUMBERS)


def is_arithmetic(call: ast.Call) -> bool:
    """Returns True for a call that only calculates."""
    name = called(call)
    if name in DRAWS or name.endswith("_") or name.startswith("set_"):
        return False
    if isinstance(call.func, ast.Attribute):
        return root_of(call.func) in LIBRARIES and not {"out"} & {one.arg for one in call.keywords}
    return name in ARITHMETIC
