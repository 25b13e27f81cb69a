"""Randomness without a position: keys and what is computed from them, the process's generators, the seed."""

from samebits.random import generators as generators
from samebits.random import permutation as permutation
from samebits.random import seeds as seeds
from samebits.random import words as words
from samebits.random.permutation import permute_index as permute_index
from samebits.random.seeds import set_random_seed as set_random_seed

__all__ = ["permute_index", "set_random_seed"]
