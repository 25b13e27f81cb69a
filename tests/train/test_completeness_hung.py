"""State in objects of torch's own classes, and what a program hangs on a library's object, is seen like that in the program's."""

import pytest

import carried_state

pytestmark = pytest.mark.usefixtures("one_thread")

IN_TORCHS_OBJECTS = {
    "a Sobol engine": (
        "h = torch.quasirandom.SobolEngine(1, scramble=True, seed=4)",
        "n = h.draw(1).item()",
        "h",
    ),
    "a distribution": ("h = torch.distributions.Normal(0.0, 1.0)", "h.loc += 1; n = h.mean.item()", "h"),
    "indices of a subset": (
        "h = torch.utils.data.Subset(range(99), [0])",
        "h.indices.append(1); n = len(h)",
        "h",
    ),
}
HUNG = {
    "on torch's dataset": (
        "",
        "loader.dataset.n = n = getattr(loader.dataset, 'n', 0) + 1",
        "loader.dataset.n",
    ),
    "on the loader": ("loader.n = 0", "loader.n += 1; n = loader.n", "loader.n"),
    "on torch's loader": (
        "loader = torch.utils.data.DataLoader(loader.dataset, 4)\nloader.n = 0",
        "loader.n += 1; n = loader.n",
        "loader.n",
    ),
    "on the optimizer": ("opt.n = 0", "opt.n += 1; n = opt.n", "opt"),
    "by a text": ("", "n = getattr(opt, 'n', 0) + 1; setattr(opt, 'n', n)", "opt"),
}
HARMLESS = {
    "a distribution that no step changes": ("h = torch.distributions.Normal(0.0, 1.0)", "n = h.mean.item()"),
    "a flag that each step sets": ("", "opt.n = step.number; n = opt.n"),
    "what torch itself sets": ("", "opt.zero_grad(); n = len(loader)"),
    "a profiler's count": (
        "import torch.profiler\nh = torch.profiler.schedule(wait=1, warmup=1, active=1)\n"
        "h = torch.profiler.profile(schedule=h, activities=[torch.profiler.ProfilerActivity.CPU])",
        "h.step_num += 1",
    ),
}


@pytest.mark.parametrize("name", [*IN_TORCHS_OBJECTS, *HUNG])
def test_what_changes_in_a_librarys_object_is_named(name, tmp_path):
    """Read by a method of torch's or by the loop, wherever it hangs: the error has its path."""
    before, inside, path = {**IN_TORCHS_OBJECTS, **HUNG}[name]
    _, text = carried_state.whole(before, inside, tmp_path)
    assert "IncompleteStateError" in text and f"  - {path}" in text, text


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", ["on torch's dataset", "on the loader", "on the optimizer"])
def test_the_line_for_what_was_hung_makes_the_run_resume(name, tmp_path):
    """Pasted where the error says, it ends with equal weights after a kill."""
    before, inside, _ = HUNG[name]
    before += "\nloader.dataset.n = 0"
    _, text = carried_state.whole(before, inside, tmp_path)
    line = next(one.strip() for one in text.splitlines() if one.strip().startswith("run.add("))
    script = carried_state.SCRIPT.replace("    for step,", f"    {line}\n    for step,")
    (again := tmp_path / "again").mkdir()
    assert carried_state.verdict(before, inside, again, script=script) == "equal"


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", HARMLESS)
def test_what_no_step_changes_there_stops_no_run(name, tmp_path):
    """No error, and equal weights after a kill."""
    assert carried_state.verdict(*HARMLESS[name], tmp_path) == "equal"
