"""Reads the seed from a Mersenne Twister's state: Python's `random` and NumPy's legacy generator keep none.

Seeding spreads a seed over 624 words in two passes that can be run backwards (`init_by_array` of
Matsumoto and Nishimura, mt19937ar.c, 2002). So the words of the seed can be read from a state that was not
drawn from.
"""

from __future__ import annotations

import numpy as np

_WORDS = 624
_FIRST = 0x80000000
"""The first word of every freshly seeded state."""
_MATRIX = 0x9908B0DF
_TURNS, _TURNS_BACK = 64, 8
"""Turns of all words that a state is advanced (0.3 ms) or taken back (2 ms each) in the search."""


def is_from_entropy(words: np.ndarray, position: int) -> bool:
    """Returns True if a state (624 words, position) was seeded by the system and not drawn from."""
    return position == _WORDS and int(words[0]) == _FIRST and not _is_short_seed(words)


def is_from_person(words: np.ndarray) -> bool:
    """Returns True if a state comes from a person's seed by 4,000 words drawn at most (2 ms each 624)."""
    for _ in range(_TURNS_BACK):
        if _is_short_seed(words):
            return True
        words = _rewind(words)
    return False


def is_reached_by_draws(origin: np.ndarray, now: np.ndarray) -> bool:
    """Returns True if the words `now` come from the words `origin` by drawing 40,000 words at most."""
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": origin, "pos": _WORDS}}
    for _ in range(_TURNS):
        if np.array_equal(twister.state["state"]["key"], now):
            return True
        twister.random_raw(_WORDS, output=False)
    return False


def _is_short_seed(words: np.ndarray) -> bool:
    """Returns True for a person's short seed, whose words repeat; the system gives 624 random words."""
    return np.unique(_seed_words(words)).size <= _WORDS // 2


def _seed_words(words: np.ndarray) -> np.ndarray:
    """Returns the seed's words 2 to 622, each plus its index in the seed: `init_by_array` run backwards."""
    place = np.arange(_WORDS, dtype=np.uint32)
    passed = words.copy()  # the state after the first of the two passes
    passed[1:2] = (words[1:2] + place[1:2]) ^ _spread(words[-1:], 1566083941)
    passed[2:3] = (words[2:3] + place[2:3]) ^ _spread(passed[1:2], 1566083941)
    passed[3:] = (words[3:] + place[3:]) ^ _spread(words[2:-1], 1566083941)
    start = np.random.RandomState(19650218).get_state(legacy=False)["state"]["key"].astype(np.uint32)
    return passed[3:] - (start[3:] ^ _spread(passed[2:-1], 1664525))


def _spread(words: np.ndarray, factor: int) -> np.ndarray:
    return (words ^ (words >> np.uint32(30))) * np.uint32(factor)


def _rewind(words: np.ndarray) -> np.ndarray:
    """Returns the state 624 draws before; of its first word only the first bit, on which others depend.

    A turn is new[i] = new_or_old[i + 397] ^ (y >> 1) ^ (_MATRIX if y is odd), with y made of the first bit of
    old[i] and the rest of old[i + 1]. _MATRIX has the first bit and y >> 1 has not, so that bit shows if y
    was odd.
    """
    turned = words.tolist()
    for i in reversed(range(_WORDS)):
        first = _before_shift(turned[i] ^ turned[(i + 397) % _WORDS])
        rest = _before_shift(turned[i - 1] ^ turned[(i + 396) % _WORDS])
        turned[i] = (first & _FIRST) | (rest & (_FIRST - 1))
    return np.array(turned, np.uint32)


def _before_shift(word: int) -> int:
    odd = word >> 31
    return (((word ^ (_MATRIX if odd else 0)) << 1) | odd) & 0xFFFFFFFF
