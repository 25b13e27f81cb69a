"""A child that is forked after a parallel op: the cure of docs/explanation/limits.md."""

import pytest

PROGRAM = """
import os, sys, torch, samebits
samebits.set_random_seed(0)
mode = sys.argv[1]
samebits.enable_op_determinism(across=mode)
torch.set_num_threads(2)
x = torch.randn(700, 700)
expected = torch.sigmoid(x) @ x
child = os.fork()
if not child:
    torch.set_num_threads(1)
    made = torch.sigmoid(x) @ x
    os._exit(0 if mode == "runs" or torch.equal(made, expected) else 3)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.first_case_quick
@pytest.mark.parametrize("mode", ["runs", "threads", "machines"])
def test_one_thread_in_the_child_lets_it_compute(python, mode):
    """With `torch.set_num_threads(1)` first the child ends; under thread and machine invariance with its parent's bits."""
    assert python(PROGRAM, mode, timeout=60).stdout == "0\n"
