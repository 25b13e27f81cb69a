"""The names of functions and methods that draw random numbers, of Python, NumPy and torch: the one list.

A name that is absent here counts as harmless: so Python's and NumPy's are read from their classes, and a test
compares torch's with the tags and the generators of its operators.
"""

from __future__ import annotations

import random

import numpy as np


def words(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


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
    """Returns True if a call of this name may draw.

    Args:
        name: the last name of the function, "power" of `np.random.power`.
        owner: the name before the dot: "random" of `np.random.power`; empty for a function.
    """
    return name in NAMES and not (name in AMBIGUOUS and (not owner or owner in _CALCULATES))
