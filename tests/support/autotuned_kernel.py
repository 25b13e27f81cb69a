"""A kernel as a user writes one, which Triton times with several configurations; it stores which one ran."""

import triton
import triton.language as tl

FIRST = 64


@triton.autotune(
    configs=[triton.Config({"BLOCK": FIRST}, num_warps=1), triton.Config({"BLOCK": 1024}, num_warps=4)],
    key=["count"],
)
@triton.jit
def which(out, count, BLOCK: tl.constexpr):
    """Stores BLOCK into every element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.full([BLOCK], BLOCK, tl.int32), mask=at < count)
