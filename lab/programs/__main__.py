"""`python -m lab.programs [NAMES]`: which programs run across machines, and with which bits, as a table."""

from __future__ import annotations

import argparse
import json
import sys

from lab.programs.run import PROGRAMS, THREADS, here, outcomes


def main() -> int:
    """Returns the exit status: 0 if every program that ran has one digest, else 1."""
    parser = argparse.ArgumentParser(prog="python -m lab.programs", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs [default: all]")
    parser.add_argument("--across", default="machines", choices=("off", "runs", "threads", "machines"))
    parser.add_argument("--child", action="store_true", help="print digests at 2 threads as JSON")
    asked = parser.parse_args()
    names = asked.names or [*PROGRAMS]
    if asked.child:
        print(json.dumps({one.name: one.digests[0] for one in here(names, asked.across, (2,))}))
        return 0
    found = [*outcomes(names, asked.across)]
    print(f"program{'':30}threads {', '.join(map(str, THREADS))} and a CPU with AVX2")
    for one in found:
        state = f"refused: {one.refused}" if one.refused else "equal" if one.equal else "DIFFERENT"
        print(f"{one.name:36} {state}")
    ran = [one for one in found if not one.refused]
    print(f"{len(found)} programs: {len(ran)} ran, {sum(one.equal for one in ran)} of them equal")
    return 0 if all(one.equal for one in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
