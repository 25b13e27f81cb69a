"""Randomness without a position: keys and what is computed from them, the process's generators, the seed."""

from samebits.random import generators as generators
from samebits.random import permutation as permutation
from samebits.random import seeds as seeds
from samebits.random import words as words
from samebits.random.generator import Generator as Generator
from samebits.random.global_generator import get_global_generator as get_global_generator
from samebits.random.global_generator import set_global_generator as set_global_generator
from samebits.random.keys import fold_in as fold_in
from samebits.random.keys import key as key
from samebits.random.keys import split as split
from samebits.random.permutation import permute_index as permute_index
from samebits.random.sampling import bits as bits
from samebits.random.sampling import normal as normal
from samebits.random.sampling import uniform as uniform
from samebits.random.seeds import set_random_seed as set_random_seed

__all__ = [
    "Generator",
    "bits",
    "fold_in",
    "get_global_generator",
    "key",
    "normal",
    "permute_index",
    "set_global_generator",
    "set_random_seed",
    "split",
    "uniform",
]
