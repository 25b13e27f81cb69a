"""Do torch's products follow the address of what they multiply? Of how many shapes, at 16 places of the first factor.

    python bench/product_addresses.py [--across machines]
    MKL_CBWR= python bench/product_addresses.py          # as MKL chooses, without samebits

A shape counts if its product has other bits where the first factor begins some elements later in memory.
"""

import argparse
import itertools

import torch

import samebits

ROWS, INNER, COLUMNS = (1, 2, 3, 4, 5, 7, 8), (3, 5, 7, 8, 16, 33), (4, 8, 20, 28, 33)
PLACES = 16


def follows_address(rows: int, inner: int, columns: int) -> bool:
    """Returns True if the product of random factors of this shape has other bits at one of the places."""
    a, b = torch.randn(rows, inner), torch.randn(columns, inner).t()
    found = []
    for place in range(PLACES):
        there = torch.empty(PLACES + a.numel())[place : place + a.numel()].view_as(a).copy_(a)
        found.append(torch.mm(there, b))
    return not all(torch.equal(found[0], one) for one in found)


def main() -> None:
    """Prints the count, and the first of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--across", choices=("runs", "threads", "machines"))
    asked = parser.parse_args()
    samebits.set_random_seed(0)
    torch.set_num_threads(1)
    shapes = list(itertools.product(ROWS, INNER, COLUMNS))
    with samebits.enable_op_determinism(asked.across is not None, across=asked.across or "runs"):
        following = [shape for shape in shapes if follows_address(*shape)]
    print(f"{len(following)} of {len(shapes)} products follow the address of their first factor")
    for m, k, n in following[:5]:
        print(f"  {m} x {k} times {k} x {n}")


if __name__ == "__main__":
    main()
