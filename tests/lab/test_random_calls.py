import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("switch, status", [("on", 0), ("off", 1)])
def test_the_table_names_each_random_call_that_differs(root, switch, status):
    """Under the switch it names each op that differs over threads; negative control: without the switch it does not."""
    command = [sys.executable, "-m", "lab.review.random_calls", "--part", "ternary", "--switch", switch]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=800)
    assert done.returncode == status and "not named by the op table: " in done.stdout, (
        done.stdout + done.stderr
    )
