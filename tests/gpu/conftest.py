"""The tests of a GPU: `make gpu` runs those that take `target` on the device, and keeps their outcomes in a report.

Without a report they rehearse on the CPU, with small tensors: the judge of a case must accept its results, and see each
result that is spoiled in turn.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import gpu_report
from agreement import spoil_each
from device_faults import is_device_lost, is_fault, wait
from samebits.audit._child.launch import die_with_parent
from timing import compare

HERE = Path(__file__).parent
_LIMIT_S = 60.0
OUTCOME = pytest.StashKey()


@dataclass
class Target:
    """The device on which a test measures."""

    device: str
    """`cuda`, or `cpu` in a rehearsal."""
    small: bool
    """A rehearsal: small tensors and few repeats, since only the procedure is tested."""
    folder: Path
    figures: dict = field(default_factory=dict)
    """For the report: times, ratios, errors. Nothing here can fail."""
    goals: dict = field(default_factory=dict)
    """Goals of speed; True if met: shown, and no failure."""
    wrong: list = field(default_factory=list)

    def check(self, judge, measure, *given, example=None):
        """Fails with what the judge says of `measure(target, *given)`, or in a rehearsal of the example, if any.

        A judge yields what is wrong, a sentence each. Results are tensors, numbers, texts, truth values, by name, and
        lists and mappings of these.
        """
        results = example if self.small and example is not None else measure(self, *given)
        wait(self.device)  # an error of the device belongs to this case, not to the next
        self.wrong += judge(results)
        assert not self.wrong, "\n".join(self.wrong)
        if self.small:
            planted = list(spoil_each(results))
            assert planted, "it has no result that could be wrong"
            missed = [what for what, spoiled in planted if next(iter(judge(spoiled)), None) is None]
            assert not missed, f"{len(missed)} of {len(planted)} wrong results are not seen: {missed[:3]}"

    def time(self, rows, per, goal=True):
        """Times pairs of calls, ours and theirs, by name: nanoseconds over `per`; with `goal`, to be as fast is a goal."""
        for name, calls in rows:
            ours, theirs, faster = compare(calls, self)
            self.figures[name] = f"{ours / per:.4g} (theirs {theirs / per:.4g})"
            if goal:
                self.goals[f"{name}: at least as fast ({faster:.2f}x)"] = faster >= 1


@pytest.fixture
def small(tmp_path):
    """A rehearsal's target, for controls of what is measured."""
    return Target("cpu", True, tmp_path)


@pytest.fixture
def target(request, tmp_path):
    """The GPU if there is a report, else a rehearsal."""
    on_gpu = request.config.getoption("gpu_report", None)
    made = Target("cuda" if on_gpu else "cpu", not on_gpu, tmp_path)
    yield made
    request.node.stash[OUTCOME] |= {"figures": made.figures, "goals": made.goals}
    if made.wrong:
        request.node.stash[OUTCOME]["wrong"] = made.wrong


def pytest_addoption(parser):
    parser.addoption("--gpu-report", type=Path, help="Run on the GPU, and keep the outcomes in this folder.")


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): after this a case has failed on a GPU; else 60")
    if config.getoption("gpu_report", None):
        die_with_parent()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.parent == HERE and "target" in item.fixturenames:
            item.add_marker("gpu")
    if folder := config.getoption("gpu_report", None):
        done = gpu_report.read(folder)["cases"]
        items[:] = [item for item in items if _name(item) not in done]


def _name(item):
    return f"{item.path.name}::{item.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[OUTCOME] = outcome = {"state": "passed", "wrong": []}
    folder = item.config.getoption("gpu_report", None)
    if not folder:
        return (yield)
    marker = item.get_closest_marker("limit")
    limit_s = marker.args[0] if marker else _LIMIT_S
    gpu_report.note_running(folder, _name(item), limit_s)
    began, result = time.monotonic(), (yield)
    fault = outcome.pop("fault", False)
    gpu_report.note_ended(folder, _name(item), {**outcome, "seconds": round(time.monotonic() - began, 2)})
    if fault:
        pytest.exit("the device has a fault: the rest runs in another process", gpu_report.AGAIN)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report, outcome = (yield), item.stash[OUTCOME]
    if report.skipped:
        outcome.update(state="skipped", wrong=[str(call.excinfo.value)])
    elif report.failed:
        error = call.excinfo.value
        first = next(iter(str(error).strip().splitlines()), "")[:300]
        outcome["state"], outcome["wrong"] = (
            "failed",
            outcome["wrong"] or [f"{type(error).__name__}: {first}"],
        )
        outcome["fault"] = is_fault(error) or is_device_lost("cuda" if torch.cuda.is_initialized() else "cpu")
    return report


def pytest_terminal_summary(terminalreporter, config):
    folder = config.getoption("gpu_report", None)
    for name, case in gpu_report.read(folder)["cases"].items() if folder else ():
        figures = [f"{what} {value}" for what, value in case.get("figures", {}).items()]
        missed = [f"MISSED {goal}" for goal, met in case.get("goals", {}).items() if not met]
        if (figures or missed) and name.partition("::")[0] in config.args[-1]:
            terminalreporter.line(f"{name}: {', '.join([*figures, *missed])}"[:400])
