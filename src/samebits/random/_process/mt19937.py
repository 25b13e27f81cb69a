"""The Mersenne Twister MT19937 run backwards: how far a state is from an earlier one, or that it was seeded.

Matsumoto and Nishimura (ACM TOMACS 8, 1998). The state is 624 words, drawn in order and then replaced all at
once (a twist), so that a state which was not twisted since differs by its position only. A twist loses
nothing but 31 bits that seeding gives word 0, and both ways of seeding (`init_genrand`, `init_by_array`)
leave recurrences between neighbouring words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits._native import inlined, kernel

WORDS = 624
MANY, SEEDED = -1, -2
MAX_TWISTS = 1680  # 1.05 million words; 2 ms
_MATRIX = np.uint32(0x9908B0DF)
_UPPER, _LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_0, _1, _30, _31 = np.uint32(0), np.uint32(1), np.uint32(30), np.uint32(31)
_KNUTH, _FIRST, _SECOND = np.uint32(1812433253), np.uint32(1664525), np.uint32(1566083941)
_LONGEST_SEED = 40  # words; Python makes 17 of a short string
BASE = np.random.RandomState(19650218).get_state(legacy=False)["state"]["key"]  # where init_by_array starts
BASE = np.ascontiguousarray(BASE, np.uint32)


@inlined
def _scramble(word: Any, factor: Any) -> Any:
    return np.uint32((word ^ (word >> _30)) * factor)


@inlined
def _mix(y: Any) -> Any:
    """Joins the upper bit of a word and the other bits of the next one, from the word of the next state."""
    return np.uint32(((y ^ (_MATRIX if y > _LOWER else _0)) << _1) | (y >> _31))


@kernel("void(uint32[::1], uint32[::1], uint32[::1], uint32[::1])")
def seed_in_place(numpy: Any, python: Any, seeds: Any, base: Any) -> None:
    """Sets NumPy's and Python's generators in place as `init_by_array` does for four seed words each.

    `numpy`: 624 words, then the number drawn; `python`: that number, then the words. Both at once: each word
    needs the one before it, and the processor computes two such chains in the time of one.
    """
    numpy[0], python[1] = base[0], base[0]
    for i in range(1, WORDS):
        j = (i - 1) & 3
        numpy[i] = (base[i] ^ _scramble(numpy[i - 1], _FIRST)) + seeds[j] + np.uint32(j)
        python[i + 1] = (base[i] ^ _scramble(python[i], _FIRST)) + seeds[4 + j] + np.uint32(j)
    # The 624th of the first pass is word 1 again, with word 0 the last one.
    numpy[1] = (numpy[1] ^ _scramble(numpy[WORDS - 1], _FIRST)) + seeds[3] + np.uint32(3)
    python[2] = (python[2] ^ _scramble(python[WORDS], _FIRST)) + seeds[7] + np.uint32(3)
    for i in range(2, WORDS):
        numpy[i] = (numpy[i] ^ _scramble(numpy[i - 1], _SECOND)) - np.uint32(i)
        python[i + 1] = (python[i + 1] ^ _scramble(python[i], _SECOND)) - np.uint32(i)
    numpy[1] = (numpy[1] ^ _scramble(numpy[WORDS - 1], _SECOND)) - _1
    python[2] = (python[2] ^ _scramble(python[WORDS], _SECOND)) - _1
    numpy[0] = python[1] = _UPPER
    numpy[WORDS] = python[0] = WORDS


@kernel("void(uint32[::1])")
def _untwist(words: Any) -> None:
    """Undoes the last twist; if no twist made the state, the lower 31 bits of word 0 are lost."""
    mixed = _mix(words[623] ^ words[396])
    for i in range(623, 0, -1):
        across = i + 396 if i < 228 else i - 228
        before = _mix(words[i - 1] ^ words[across])
        words[i] = (mixed & _UPPER) | (before & _LOWER)
        mixed = before
    words[0] = (mixed & _UPPER) | (_mix(words[623] ^ words[396]) & _LOWER)


@inlined
def _first_pass(words: Any, i: Any) -> Any:
    """Returns word i >= 3 as it was between the two passes of init_by_array."""
    return np.uint32(words[i] + np.uint32(i)) ^ _scramble(words[i - 1], _SECOND)


@kernel("uint32(uint32[::1], int64, uint32[::1])")
def _seed_word(words: Any, i: Any, base: Any) -> Any:
    """Returns init_by_array's addend at word i >= 4 of its state: seed[j] + j, j = (i - 1) % len(seed)."""
    return np.uint32(_first_pass(words, i) - (base[i] ^ _scramble(_first_pass(words, i - 1), _FIRST)))


@kernel("boolean(uint32[::1], uint32[::1])")
def _was_seeded(words: Any, base: Any) -> Any:
    """Returns True if seeding by an integer or at most 40 words made this state: 128 bits agree."""
    by_integer = True
    for i in range(2, 6):
        by_integer &= words[i] == np.uint32(_scramble(words[i - 1], _KNUTH) + np.uint32(i))
    if by_integer:
        return True
    for length in range(1, _LONGEST_SEED + 1):
        i = 4
        while i < 8 and _seed_word(words, i, base) == _seed_word(words, i + length, base):
            i += 1
        if i == 8:
            return True
    return False


@kernel("boolean(uint32[::1], uint32[::1], uint32[::1])")
def _is_noted(words: Any, noted: Any, base: Any) -> Any:
    """Returns True for the noted state: its 624 words, or the few from which init_by_array made it."""
    if noted.size < WORDS:
        for i in range(4, 12):
            j = (i - 1) % noted.size
            if _seed_word(words, i, base) != np.uint32(noted[j] + np.uint32(j)):
                return False
        return True
    for i in range(1, WORDS):
        if words[i] != noted[i]:
            return False
    return (words[0] ^ noted[0]) <= _LOWER


@kernel("int64(uint32[:], int64, uint32[::1], uint32[::1])")
def _words_since(state: Any, position: Any, noted: Any, base: Any) -> Any:
    words = np.empty(WORDS, np.uint32)
    words[:] = state
    for twists in range(MAX_TWISTS + 1):
        if _is_noted(words, noted, base):
            return max(WORDS * (twists - 1) + position, SEEDED)
        if _was_seeded(words, base):
            return SEEDED
        _untwist(words)
    return MANY


@kernel("UniTuple(int64, 3)(uint32[::1], uint32[::1], uint32[::1], uint32[::1], uint32[::1])")
def words_since(torch: Any, numpy: Any, python: Any, noted: Any, base: Any) -> Any:
    """Returns the words drawn from each of three generators since the noted states; or MANY or SEEDED.

    States as in memory: torch's as `generators` describes it, NumPy's 624 words and their position (nothing
    if that is another kind of generator: SEEDED), Python's position and words. Noted: torch's 624 words, and
    as many seed words for NumPy as for Python; the position was at the end. MANY: not found within 1680
    twists. `base`: BASE.
    """
    half = (WORDS + noted.size) // 2
    by_numpy = np.int64(SEEDED)
    if numpy.size:
        by_numpy = _words_since(numpy[:WORDS], numpy[WORDS], noted[WORDS:half], base)
    return (
        _words_since(torch[6 : 6 + 2 * WORDS : 2], 1 + WORDS - torch[2], noted[:WORDS], base),
        by_numpy,
        _words_since(python[1:], python[0], noted[half:], base),
    )
