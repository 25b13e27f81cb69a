"""TestU01's SmallCrush over the streams of samebits.random, and over broken generators that it must fail.

    python bench/quality.py [--crush] [name ...]

Needs the library TestU01 (Debian and Ubuntu: libtestu01-0, of the section non-free or universe); without it, exit code 2.
Prints a row per stream: the statistics, the smallest and largest p-value, and what fails. A stream fails with a p-value
below 1e-10 or above 1 - 1e-10. Exit code 1 if a stream of ours fails or a broken generator does not.
SmallCrush: 15 statistics of 227 million words, 5 to 20 s of one core a stream; --crush: 144 statistics of 3.4 * 10**10
words, a quarter of an hour for the words of one key.
"""

import ctypes
import ctypes.util
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
import traceback

import numpy as np
import torch

import samebits.random as sr
from samebits.random import _int_keys as int_keys
from samebits.random._draws.feistel import permute_indices

CLEAR = 1e-10  # TestU01's own bound of a clear failure
ROOT = int_keys.fold(int_keys.root(20261120), "bench/quality")
CHUNK = 1 << 18


def at(seed, offset):
    """Key tensors from seeds and offsets (integers modulo 2**64 that broadcast)."""
    pairs = np.broadcast_arrays(np.asarray(seed, np.uint64), np.asarray(offset, np.uint64))
    return torch.from_numpy(np.stack(pairs, -1).copy())


def first_words(keys, number=1):
    """The first words of each key of a batch (keys, 2): block b of a stream is what fold_in(key, b) consists of."""
    blocks = [sr.fold_in(keys, block).numpy().view(np.uint32) for block in range(-(-number // 4))]
    return np.concatenate(blocks, 1)[:, :number]


def stream(name):
    """The words of one key, chunk by chunk."""
    seed, offset = int_keys.fold(ROOT, name)
    for block in itertools.count(0, CHUNK // 4):
        yield sr.bits(at(seed, (offset + block) % 2**64), CHUNK).numpy()


def one_key():
    return stream("one key")


def keys_one_bit_apart():
    """64 keys, each with another bit of the seed flipped: a word of each in turn."""
    seed, offset = int_keys.fold(ROOT, "one bit apart")
    flipped = np.uint64(seed) ^ (np.uint64(1) << np.arange(64, dtype=np.uint64))
    for block in itertools.count(0, CHUNK // 256):
        yield first_words(at(flipped, (offset + block) % 2**64), CHUNK // 64).T


def seeds_0_1_2():
    for seed in itertools.count(0, CHUNK):
        yield first_words(at(np.arange(seed, seed + CHUNK), 0))


def folded_0_1_2():
    """The first word of fold_in(key, i) for i = 0, 1, 2, ...; split(key, ...) from a later offset gives these keys."""
    seed, offset = int_keys.fold(ROOT, "folded")
    for i in itertools.count(0, CHUNK):
        yield first_words(sr.split(at(seed, (offset + i) % 2**64), CHUNK))


def folded_twice():
    """fold_in(fold_in(key, epoch), step), 64 steps an epoch."""
    for epoch in itertools.count(0, CHUNK // 64):
        epochs = sr.split(at(ROOT[0], (ROOT[1] + epoch) % 2**64), CHUNK // 64)
        yield first_words(sr.split(epochs, 64).transpose(0, 1).reshape(-1, 2))


def split_18_times():
    """The leaves of a tree: every key split in two, 18 levels deep."""
    for tree in itertools.count():
        keys = at(*int_keys.fold(ROOT, "split", tree)).view(1, 2)
        for _ in range(18):
            keys = sr.split(keys).transpose(0, 1).reshape(-1, 2)
        yield first_words(keys)


def folded_strings():
    """16 words of each of fold_in(key, "layers.0.weight"), ..."""
    for layer in itertools.count(0, CHUNK // 16):
        folded = [int_keys.fold(ROOT, f"layers.{i}.weight") for i in range(layer, layer + CHUNK // 16)]
        yield first_words(torch.from_numpy(np.array(folded, np.uint64)), 16)


def halves(shift):
    """The 16 high (shift 16) or low (0) bits of each word, two to a word."""
    for chunk in stream("halves"):
        half = (chunk >> np.uint32(shift)).astype(np.uint16)
        yield half.view(np.uint32)


def reversed_bits():
    """The low bits first: many statistics look at the high ones only."""
    for chunk in stream("reversed"):
        swapped = np.packbits(np.unpackbits(chunk.view(np.uint8), bitorder="little"))
        yield swapped.view(np.uint32).byteswap()


def mantissas():
    """The 24 bits of float32 uniform numbers, packed without gaps."""
    seed, offset = int_keys.fold(ROOT, "uniform")
    for block in itertools.count(0, CHUNK // 4):
        whole = (sr.uniform(at(seed, (offset + block) % 2**64), CHUNK) * 2**24).numpy().astype("<u4")
        yield whole.view(np.uint8).reshape(-1, 4)[:, :3].copy().reshape(-1).view(np.uint32)


def normals():
    """The normal distribution function of float64 normal numbers, 32 bits of it."""
    seed, offset = int_keys.fold(ROOT, "normal")
    for block in itertools.count(0, CHUNK // 2):
        drawn = sr.normal(at(seed, (offset + block) % 2**64), CHUNK, dtype=torch.float64)
        yield (torch.special.ndtr(drawn) * 2**32).numpy().astype(np.uint32)


def permuted():
    """The 32 high bits of the images of 0, 1, 2, ... under one permutation of range(2**48)."""
    for i in itertools.count(0, CHUNK):
        yield (permute_indices(ROOT, i, i + CHUNK, 2**48) >> 16).astype(np.uint32)


def weyl():
    for i in itertools.count(0, CHUNK):
        turns = np.arange(i, i + CHUNK, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        yield (turns >> np.uint64(32)).astype(np.uint32)


def randu():
    """x -> 65539 x modulo 2**31."""
    steps = np.array([pow(65539, k, 2**31) for k in range(1, CHUNK + 1)], np.uint64)
    x = np.uint64(1)
    while True:
        chunk = steps * x & np.uint64(2**31 - 1)
        x = chunk[-1]
        yield (chunk << np.uint64(1)).astype(np.uint32)


def philox_of_rounds(rounds):
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    for block in itertools.count(0, CHUNK // 4):
        c0, k0, k1 = np.arange(block, block + CHUNK // 4, dtype=np.uint64), np.uint64(1), np.uint64(0)
        c1 = c2 = c3 = np.zeros_like(c0)
        for _ in range(rounds):
            p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
            c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
            k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
        yield np.stack([c0, c1, c2, c3], 1).astype(np.uint32)


def keys_added():
    """16 words of each key (seed, offset + i): what adding instead of folding gives."""
    for i in itertools.count(0, CHUNK // 16):
        yield first_words(at(ROOT[0], np.arange(i, i + CHUNK // 16, dtype=np.uint64)), 16)


OURS = {
    "one key": one_key,
    "64 keys, one seed bit apart": keys_one_bit_apart,
    "key(0), key(1), ...": seeds_0_1_2,
    "fold_in 0, 1, 2, ...": folded_0_1_2,
    "fold_in epoch, then step": folded_twice,
    "fold_in of strings": folded_strings,
    "split, 18 levels deep": split_18_times,
    "high halves": lambda: halves(16),
    "low halves": lambda: halves(0),
    "bits reversed": reversed_bits,
    "mantissas of uniform": mantissas,
    "normal, to uniform": normals,
    "permute_index of 2**48": permuted,
}
BROKEN = {
    "broken: Weyl sequence": weyl,
    "broken: randu": randu,
    "broken: Philox, 2 rounds": lambda: philox_of_rounds(2),
    "broken: keys added": keys_added,
}


class Generator(ctypes.Structure):
    """TestU01's unif01_Gen."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("param", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("uniform", ctypes.c_void_p),
        ("bits", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
    )


def run(name, battery):
    """[statistics' names, p-values, words drawn, seconds] of a battery over a stream, in this process."""
    import numba
    from numba import types

    testu01 = ctypes.CDLL(ctypes.util.find_library("testu01"))
    ctypes.c_int.in_dll(testu01, "swrite_Basic").value = 0
    chunks = (OURS | BROKEN)[name]()
    buffer = np.empty(CHUNK, np.uint32)
    position = np.zeros(3, np.int64)  # the next word, words in the buffer, words drawn

    @ctypes.CFUNCTYPE(None)
    def refill():
        try:
            chunk = np.ascontiguousarray(next(chunks)).reshape(-1)
        except BaseException:  # through C it cannot rise
            traceback.print_exc()
            os._exit(1)
        buffer[: chunk.size] = chunk
        position[:] = 0, chunk.size, position[2] + chunk.size

    pointers = (types.CPointer(types.int64), types.CPointer(types.uint32))

    @numba.njit
    def word(position, buffer):
        if position[0] == position[1]:
            refill()
        position[0] += 1
        return buffer[position[0] - 1]

    bits = numba.cfunc(types.uint64(*pointers))(lambda position, buffer: np.uint64(word(position, buffer)))
    uniform = numba.cfunc(types.float64(*pointers))(
        lambda position, buffer: word(position, buffer) * 2.0**-32
    )
    write = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _state: None)
    generator = Generator(
        buffer.ctypes.data, position.ctypes.data, b"samebits", uniform.address, bits.address,
        ctypes.cast(write, ctypes.c_void_p),
    )  # fmt: skip
    began = time.process_time()
    getattr(testu01, f"bbattery_{battery}")(ctypes.byref(generator))
    number = ctypes.c_int.in_dll(testu01, "bbattery_NTests").value
    names = (ctypes.c_char_p * number).in_dll(testu01, "bbattery_TestNames")
    values = (ctypes.c_double * number).in_dll(testu01, "bbattery_pVal")
    return [n.decode() for n in names], list(values), int(position[2]), time.process_time() - began


def verdict(name, battery):
    """Prints the row of a stream; whether it is as it should be. A process of its own, as TestU01 prints and aborts."""
    child = subprocess.run(
        [sys.executable, __file__, "--child", name, battery], capture_output=True, text=True
    )
    try:
        names, values, drawn, seconds = json.loads(child.stderr.splitlines()[-1])
    except (IndexError, ValueError):
        print(child.stdout[-2000:], child.stderr[-2000:], sep="\n")
        return False
    failed = [n for n, p in zip(names, values, strict=True) if not CLEAR < p < 1 - CLEAR]
    odd = [
        f"{n} {p:.1e}"
        for n, p in zip(names, values, strict=True)
        if not 1e-3 < p < 1 - 1e-3 and n not in failed
    ]
    said = (
        f"FAILS {len(failed)}: {', '.join(failed)}" if failed else "passes" + "".join(f"; {o}" for o in odd)
    )
    print(
        f"{name:28} {len(values):4} {min(values):9.2g} {1 - max(values):9.2g} {drawn / 1e6:7.0f} {seconds:6.0f}  {said}",
        flush=True,
    )
    return bool(failed) == (name in BROKEN)


def main(arguments):
    torch.set_num_threads(1)
    if arguments[:1] == ["--child"]:
        print("\n" + json.dumps(run(*arguments[1:])), file=sys.stderr)
        return 0
    if ctypes.util.find_library("testu01") is None or importlib.util.find_spec("numba") is None:
        print(
            "bench/quality.py needs TestU01 (apt-get install libtestu01-0; section non-free, or universe) and Numba (pip install numba)",
            file=sys.stderr,
        )
        return 2
    battery = "Crush" if "--crush" in arguments else "SmallCrush"
    chosen = [name for name in arguments if name != "--crush"] or [*OURS, *BROKEN]
    print(f"{battery:28} {'n':>4} {'min p':>9} {'1 - max p':>9} {'10^6 words':>7} {'CPU s':>6}")
    good = [verdict(name, battery) for name in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
