"""Digests of every elementwise function: `python elementwise_digests.py [--threads N] [names ...]` prints them as JSON.

Operands are integers made to floats, so that no generator of torch has a part in them: every exponent, ordinary numbers,
special values; at lengths 1 to 100 and a long one, which several threads share.
"""

import argparse
import hashlib
import json
import math
import sys

import numpy as np
import torch

from samebits.arithmetic.elementwise_functions import FUNCTIONS

NUMBERS = {
    "elu": (1.7, 1.05, 0.9),
    "logit": (0.1, 0.9),
    "softplus": (1.5, 20.0),
    "smooth": (0.1, 1.5),
    "huber": (0.1, 1.5),
}
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 1e-45, 3e38, 1e16)
LONG = 40_000


def operand(place, dtype, count):
    """Numbers from a multiplicative sequence of integers."""
    words = (np.arange(count, dtype=np.uint64) + np.uint64(1 + place)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    half = (words >> np.uint64(32)).astype(np.uint32).view(np.float32)
    small = (words >> np.uint64(40)).astype(np.float64) / 2.0**24 * 8 - 4
    with np.errstate(invalid="ignore"):  # signalling NaN
        found = torch.from_numpy(np.where(words % np.uint64(3) == 0, half.astype(np.float64), small))
    found[5 : 5 + len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64).roll(place)
    return found.to(dtype)


def numbers(function):
    """Arguments for a function that takes Python numbers."""
    named = next((values for name, values in NUMBERS.items() if function.name.startswith(name)), ())
    return (*named, 0.7, 0.3, 0.9)[: function.numbers]


def digest(function, dtype):
    """The digest of the results for all lengths."""
    hasher = hashlib.sha256()
    operands = [operand(place, dtype, LONG) for place in range(function.inputs)]
    for count in (*range(1, 101), LONG):
        results = [torch.empty(count, dtype=dtype) for _ in range(function.outputs)]
        addresses = [value for each in operands for value in (each.data_ptr(), 1)]
        addresses += [each.data_ptr() for each in results]
        function.kernels[dtype](count, *addresses, *numbers(function))
        for each in results:
            hasher.update(each.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def digests(names=()):
    """The digests of all functions, or of those named, in every type."""
    return {
        f"{name} {str(dtype)[6:]}": digest(function, dtype)
        for name, function in FUNCTIONS.items()
        if not names or name in names
        for dtype in function.kernels
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    json.dump(digests(options.names), sys.stdout)
