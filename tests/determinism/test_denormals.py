"""`torch.set_flush_denormal` under the switch holds for every thread of torch's ops, whenever it is called."""

import pytest

PROGRAM = """
import sys, torch, samebits
x = torch.full((1 << 20,), -90.0)

def results():
    return sorted({float(part) for _ in range(8) for part in torch.exp(x).view(4, -1).sum(1)})

torch.set_num_threads(4)
torch.exp(x)
if sys.argv[1] == "before":
    torch.set_flush_denormal(True)
if sys.argv[1] != "off":
    samebits.enable_op_determinism(across="runs" if sys.argv[1] == "before" else sys.argv[1])
torch.set_flush_denormal(True)
found = [results()]
torch.set_num_threads(1)
torch.set_flush_denormal(False)
torch.set_num_threads(4)
found.append(results())
torch.set_flush_denormal(True)
torch.set_num_threads(2)
found.append(results())
print([len(one) == 1 and (one[0] > 0) == kept for one, kept in zip(found, (False, True, False))])
"""


@pytest.mark.first_case_quick
@pytest.mark.parametrize("mode", ["runs", "machines", "before"])
def test_every_thread_follows(python, mode):
    """After worker threads exist, after a call on one thread, and where it was set before the switch: all threads as asked."""
    assert python(PROGRAM, mode).stdout == "[True, True, True]\n"


def test_without_the_switch_one_thread_follows(python):
    """Negative control: torch alone sets it for the calling thread, and the others go on."""
    assert "False" in python(PROGRAM, "off").stdout
