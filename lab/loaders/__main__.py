"""`python -m lab.loaders [WORD ...]`: a table of the cases whose library or name has one of the words.

For each: seconds to the first batch with torch's loader and with samebits', both inline and both after a first
loader has compiled what it needs; then whether 0 and 2 workers give equal batches, or the refusal. Each case runs
in a process forked from one that has imported its library. Libraries that are not installed are named and skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import torch

import samebits
from lab.loaders import others, texts, vision  # noqa: F401 (they register cases)
from lab.loaders.registry import CASES, Case
from samebits._digest import of_value

LIMIT = 90
"""Seconds of a case."""
BATCHES = 4


def main(words: list[str]) -> int:
    """Prints the table; returns the number of cases that are neither equal nor refused by samebits."""
    torch.set_num_threads(1)
    samebits.set_random_seed(1)
    next(iter(samebits.data.DataLoader([0, 1], shuffle=True)))
    print("| case | torch | samebits | more | 0 and 2 workers |\n|---|---|---|---|---|", flush=True)
    failed = 0
    for library, cases in CASES.items():
        wanted = {n: c for n, c in cases.items() if not words or any(w in f"{library} {n}" for w in words)}
        if not wanted:
            continue
        if importlib.util.find_spec(library) is None:
            print(f"| {library}: not installed, {len(wanted)} skipped |||||", flush=True)
            continue
        try:
            importlib.import_module(library)
        except Exception as error:
            print(
                f"| {library}: its import raises {type(error).__name__}, {len(wanted)} skipped |||||",
                flush=True,
            )
            continue
        for name, one in wanted.items():
            failed += in_fork(f"{library}: {name}", one)
    print(f"{failed} failed")
    return failed


def in_fork(name: str, one: Case) -> bool:
    """Runs a case in a process of its own; returns True if it failed."""
    child = os.fork()
    if not child:
        signal.alarm(LIMIT)
        try:
            print(f"| {name} | {row(one)} |", flush=True)
            os._exit(0)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".replace("\n", " ")[:150]
            print(f"| {name} | FAILED {text} ({place.filename}:{place.lineno}) |||", flush=True)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        print(f"| {name} | FAILED by signal {-status} |||", flush=True)
    return status != 0


def row(one: Case) -> str:
    """Returns the cells of a case."""
    warnings.simplefilter("ignore")
    dataset, arguments = one()
    arguments = {"batch_size": 4, "shuffle": True, **arguments}
    if "sampler" in arguments:
        del arguments["shuffle"]
    # imports that the first batch makes count for none
    first(torch.utils.data.DataLoader, dataset, arguments)
    theirs = first(torch.utils.data.DataLoader, dataset, arguments)
    try:
        ours = first(samebits.data.DataLoader, dataset, arguments)
        inline, parallel = ([*batches(dataset, arguments, workers)] for workers in (0, 2))
        verdict = "equal" if inline == parallel else "DIFFERENT"
    except samebits.errors.SamebitsError as error:
        return f"{theirs:.2f} | | | {type(error).__name__}: {str(error)[:90]}"
    if verdict != "equal":
        raise AssertionError(f"{verdict}: {theirs:.2f} {ours:.2f}")
    return f"{theirs:.2f} | {ours:.2f} | {ours - theirs:+.2f} | {verdict}"


def first(kind: Any, dataset: Any, arguments: dict[str, Any]) -> float:
    """Returns the seconds of the processor to the first batch: others use this machine too."""
    samebits.set_random_seed(1)
    began = time.process_time()
    next(iter(kind(dataset, **arguments)))
    return time.process_time() - began


def batches(dataset: Any, arguments: dict[str, Any], workers: int) -> Any:
    """Yields digests of the first batches."""
    samebits.set_random_seed(1)
    loader = samebits.data.DataLoader(dataset, num_workers=workers, **arguments)
    return [of_value(plain(batch)) for batch in itertools.islice(loader, BATCHES)]


def plain(value: Any) -> Any:
    """Returns a batch as lists of tensors and numbers."""
    if hasattr(value, "to_dict") and not isinstance(value, torch.Tensor):
        value = value.to_dict()
    if hasattr(value, "items"):
        return [[str(key), plain(part)] for key, part in value.items()]
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
