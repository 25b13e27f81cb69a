"""Randomness without a position: keys, functions of keys, the process's generators, the seed.

Read `_keys.py` first. Doors: here and in pyproject.toml. Imports: `arithmetic` and below.
"""

from samebits.random import _torch_ops as _torch_ops  # registers the ops
from samebits.random._draws.choices import categorical as categorical
from samebits.random._draws.choices import choice as choice
from samebits.random._draws.dropout_function import dropout as dropout
from samebits.random._draws.exponential_gumbel import exponential as exponential
from samebits.random._draws.exponential_gumbel import gumbel as gumbel
from samebits.random._draws.exponential_gumbel import truncated_normal as truncated_normal
from samebits.random._draws.integers import permutation as permutation
from samebits.random._draws.integers import permute_index as permute_index
from samebits.random._draws.integers import randint as randint
from samebits.random._draws.uniform_normal import bernoulli as bernoulli
from samebits.random._draws.uniform_normal import bernoulli_ as bernoulli_
from samebits.random._draws.uniform_normal import bits as bits
from samebits.random._draws.uniform_normal import normal as normal
from samebits.random._draws.uniform_normal import normal_ as normal_
from samebits.random._draws.uniform_normal import uniform as uniform
from samebits.random._draws.uniform_normal import uniform_ as uniform_
from samebits.random._generator import Generator as Generator
from samebits.random._global_generator import get_global_generator as get_global_generator
from samebits.random._global_generator import set_global_generator as set_global_generator
from samebits.random._keys import fold_in as fold_in
from samebits.random._keys import key as key
from samebits.random._keys import split as split
from samebits.random._process.draw_counts import draws as draws
from samebits.random._process.seeds import set_random_seed as set_random_seed
