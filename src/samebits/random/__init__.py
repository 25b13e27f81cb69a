"""Randomness without a position: keys and what is computed from them, the process's generators, the seed."""

from samebits.random import accounting as accounting
from samebits.random import feistel as feistel
from samebits.random import generators as generators
from samebits.random import seeds as seeds
from samebits.random import words as words
from samebits.random.accounting import draws as draws
from samebits.random.choices import categorical as categorical
from samebits.random.choices import choice as choice
from samebits.random.discrete import permutation as permutation
from samebits.random.discrete import permute_index as permute_index
from samebits.random.discrete import randint as randint
from samebits.random.dropout import dropout as dropout
from samebits.random.generator import Generator as Generator
from samebits.random.global_generator import get_global_generator as get_global_generator
from samebits.random.global_generator import set_global_generator as set_global_generator
from samebits.random.keys import fold_in as fold_in
from samebits.random.keys import key as key
from samebits.random.keys import split as split
from samebits.random.ops import definitions as definitions
from samebits.random.sampling import bernoulli as bernoulli
from samebits.random.sampling import bernoulli_ as bernoulli_
from samebits.random.sampling import bits as bits
from samebits.random.sampling import normal as normal
from samebits.random.sampling import normal_ as normal_
from samebits.random.sampling import uniform as uniform
from samebits.random.sampling import uniform_ as uniform_
from samebits.random.seeds import set_random_seed as set_random_seed
from samebits.random.transformed import exponential as exponential
from samebits.random.transformed import gumbel as gumbel
from samebits.random.transformed import truncated_normal as truncated_normal

__all__ = [
    "Generator",
    "bernoulli",
    "bernoulli_",
    "bits",
    "categorical",
    "choice",
    "draws",
    "dropout",
    "exponential",
    "fold_in",
    "get_global_generator",
    "gumbel",
    "key",
    "normal",
    "normal_",
    "permutation",
    "permute_index",
    "randint",
    "set_global_generator",
    "set_random_seed",
    "split",
    "truncated_normal",
    "uniform",
    "uniform_",
]
