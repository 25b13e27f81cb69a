"""Runs programs under the switch: a digest for each number of threads, or the op that refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

import samebits
from lab.programs import generative, others, sequences, vision  # noqa: F401 (they fill the list)
from lab.programs.registry import PROGRAMS
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.errors import UnimplementedError

THREADS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Outcome:
    """One program: its digests, at each number of threads and then on the played CPU, or the op that refused."""

    name: str
    digests: tuple[str, ...]
    refused: str = ""

    @property
    def equal(self) -> bool:
        """True if the program ran and all digests are the same."""
        return not self.refused and len(set(self.digests)) == 1


def digest(name: str, across: str) -> tuple[str, str]:
    """Returns the digest of what a program computes, and the op that refused, one of them empty.

    `across`: of the switch, or "off" for torch's own kernels.
    """
    with nullcontext() if across == "off" else samebits.enable_op_determinism(across=across):  # type: ignore[arg-type]
        samebits.set_random_seed(1)
        try:
            return str(of_value(PROGRAMS[name]())), ""
        except UnimplementedError as error:
            found = re.search(r"aten::\w+(\.\w+)?", str(error))
            return "", found[0] if found else str(error)


def here(names: Sequence[str], across: str, threads: Sequence[int]) -> list[Outcome]:
    """Returns the outcomes of this process."""
    before, outcomes = torch.get_num_threads(), []
    for name in names:
        digests, refused = [], ""
        for count in threads:
            torch.set_num_threads(count)
            made, refused = digest(name, across)
            digests.append(made)
            if refused:
                break
        outcomes.append(Outcome(name, tuple(digests), refused))
    torch.set_num_threads(before)
    return outcomes


def elsewhere(names: Sequence[str], across: str) -> dict[str, str]:
    """Returns the digests, at 2 threads, of a process that plays a CPU without AVX-512."""
    words = [sys.executable, "-W", "ignore", "-m", "lab.programs", "--child", "--across", across, *names]
    path = os.pathsep.join(each for each in (os.getcwd(), *sys.path) if each)
    environment = {**os.environ, **AVX2_ENVIRONMENT, "PYTHONPATH": path}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process of the played CPU ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def outcomes(names: Sequence[str], across: str, threads: Sequence[int] = THREADS) -> Iterator[Outcome]:
    """Yields the outcome of each program, on this CPU and on the played one."""
    ours = here(names, across, threads)
    theirs = elsewhere([one.name for one in ours if not one.refused], across)
    for one in ours:
        yield one if one.refused else Outcome(one.name, (*one.digests, theirs[one.name]))
