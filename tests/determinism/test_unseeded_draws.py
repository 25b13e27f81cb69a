"""Rule: a draw without a seed raises when it is captured into a graph; a graph from before raises when it runs."""

import os
import subprocess
import sys

import pytest

SOURCE = """
import torch, samebits
from torch.fx.experimental.proxy_tensor import make_fx
x = torch.ones(64)
def drop(x):
    return torch.nn.functional.dropout(x, 0.5)
def rand(x):
    return x + torch.rand(64)
def own(x):
    return x + torch.rand(64, generator=torch.Generator().manual_seed(1))
def quiet(x):
    return torch.nn.functional.dropout(x, 0.5, training=False)
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(x) * 2
def attempt(name, capture):
    try:
        capture()
        print(phase, "went", name)
    except RuntimeError as error:
        if "torch._C.Generator" in str(error) and torch.__version__ < "2.12":  # make_fx could not hold one
            print(phase, "cannot", name)
            return
        # TorchScript's interpreter makes a RuntimeError of every error.
        assert isinstance(error, samebits.errors.UnseededError) or "before" in name, error
        assert "UnseededError" in repr(error) and "set_random_seed" in str(error) and "script.py:" in str(error), error
        print(phase, "raised", name)
def capture_all():
    for f in (drop, rand, own, quiet):
        for mode in ("real", "fake", "symbolic"):
            attempt(f"{f.__name__} make_fx {mode}", lambda: make_fx(f, tracing_mode=mode)(x))
        attempt(f"{f.__name__} jit.trace", lambda: torch.jit.trace(f, (x,), check_trace=False))
    for f in (drop, rand, quiet):
        attempt(f"{f.__name__} jit.script", lambda: torch.jit.script(f))
        for backend in ("eager", "aot_eager"):
            attempt(f"{f.__name__} compile {backend}", lambda: torch.compile(f, backend=backend)(x))
    for name, module in (("drop", Module()), ("quiet", Module().eval())):
        attempt(f"{name} module jit.script", lambda: torch.jit.script(module))
        for strict in (False, True):
            attempt(f"{name} module export strict={strict}", lambda: torch.export.export(module, (x,), strict=strict))
def run_all():
    state = torch.default_generator.get_state()
    for name, graph in graphs.items():
        attempt(f"{name} from before", lambda: graph(x))
    print(phase, "moved" if not torch.equal(state, torch.default_generator.get_state()) else "still", "generator")

phase = "off"
capture_all()
graphs = {
    "make_fx": make_fx(drop, tracing_mode="fake")(x),
    "export": torch.export.export(Module().train(), (x,)).module(),
    "trace": torch.jit.trace(drop, (x,), check_trace=False),
    "script": torch.jit.script(Module()),
    "compile": torch.compile(drop, backend="aot_eager"),
}
run_all()
phase = "on"
samebits.enable_op_determinism()
run_all()
capture_all()
attempt("quiet inductor", lambda: torch.compile(quiet)(x))
attempt("drop inductor", lambda: torch.compile(drop)(x))
phase = "seeded"
torch.manual_seed(0)
run_all()
capture_all()
attempt("drop inductor", lambda: torch.compile(drop)(x))
"""


pytestmark = pytest.mark.slow
"""One process of 25 s; `test_graph_mode_capture.py` has a fast case of each kind."""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """One process that captures and runs everything without the switch, under it, and seeded: (phase, name) to outcome."""
    script = tmp_path_factory.mktemp("graphs") / "script.py"
    script.write_text(SOURCE)
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    outcomes = {(phase, name): outcome for phase, outcome, name in lines}
    cannot = [key for key, outcome in outcomes.items() if outcome == "cannot"]
    assert all(name.startswith("own make_fx") for _, name in cannot)
    return {**outcomes, **dict.fromkeys(cannot, "went")}


def outcomes(told, phase, *, before):
    return {
        name: outcome
        for (of, name), outcome in told.items()
        if of == phase and name != "generator" and ("before" in name) == before
    }


def test_an_unseeded_draw_raises_when_the_graph_is_made(told):
    """make_fx, export, compile, script and trace raise, with the user's line; not in evaluation, nor with a generator.

    Inductor compiles a dropout in evaluation, too, though it captures dropouts of its own to recognise them.
    """
    made = outcomes(told, "on", before=False)
    assert len(made) == 33
    assert made == {name: "raised" if name.split()[0] in ("drop", "rand") else "went" for name in made}


@pytest.mark.parametrize(("phase", "count"), [("off", 31), ("seeded", 32)])
def test_a_seeded_draw_is_captured(phase, count, told):
    """Negative control: with the switch off, or after a seed, every one of them is captured and runs."""
    made = outcomes(told, phase, before=False)
    assert len(made) == count and set(made.values()) == {"went"}


@pytest.mark.parametrize(
    ("phase", "outcome", "generator"),
    [("off", "went", "moved"), ("on", "raised", "still"), ("seeded", "went", "moved")],
)
def test_a_graph_from_before_the_switch_raises_when_it_runs(phase, outcome, generator, told):
    """Graphs made without the switch raise under it, and the generator stays. Off or seeded (negative controls): they draw."""
    run = outcomes(told, phase, before=True)
    assert len(run) == 5 and set(run.values()) == {outcome}
    assert told[phase, "generator"] == generator
