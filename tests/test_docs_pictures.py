"""The pictures of docs/: each cause of docs/explanation/why.md moves weights with torch alone, and none with samebits."""

import importlib
import re

import pytest

CAUSES = ["checkpoints", "loaders", "random", "threads", "vectors", "vendors"]


@pytest.fixture
def program(root, monkeypatch):
    """Imports a program of docs/_pictures."""
    monkeypatch.syspath_prepend(root / "docs" / "_pictures")
    return importlib.import_module


def test_each_cause_has_its_picture_with_a_text(root, program):
    """docs/explanation/why.md shows each measured cause once, and says in words what the picture shows."""
    page = (root / "docs" / "explanation" / "why.md").read_text()
    shown = re.findall(r"^```{picture} (\w+)\n---\nalt: >\n  .{40,}\n  .+\n---\n\S", page, re.MULTILINE)
    assert sorted(shown) == sorted(program("cases").CASES) == CAUSES


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_moves_weights_with_torch_and_none_with_samebits(cause, program):
    """The weights differ with torch alone; negative control: with samebits no bit does, from the first step to the last."""
    for alone, ours in program("cases").measure([cause])[cause].values():
        assert max(alone) > 0
        assert ours == [0.0] * program("training").STEPS


@pytest.mark.slow
def test_a_killed_run_does_its_last_steps_again_with_equal_weights(program):
    """The second process begins after the newest commit that the first one made, and repeats each digest."""
    run = program("timeline").measure()
    first, second = ({done: digest for _, done, digest in steps} for steps in run["processes"])
    repeated = first.keys() & second.keys()
    last = max(done for when, done, _ in run["commits"] if when < run["processes"][0][-1][0] + 1)
    assert min(second) == last + 1
    assert repeated and {done: first[done] for done in repeated} == {done: second[done] for done in repeated}


@pytest.mark.parametrize(("mode", "background"), [("light", "ffffff"), ("dark", "131416")])
def test_the_colours_of_pictures_can_be_read(mode, background, program):
    """4.5:1 on the theme's background (WCAG AA); negative control: the colours of the other mode have less."""
    modes = program("draw").MODES
    assert all(contrast(colour.removeprefix("#"), background) >= 4.5 for colour in modes[mode].values())
    (other,) = modes.keys() - {mode}
    assert any(contrast(colour.removeprefix("#"), background) < 4.5 for colour in modes[other].values())


def contrast(one, other):
    """The ratio of WCAG 2 between two colours of six hexadecimal digits."""
    high, low = sorted(map(_luminance, (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    parts = (value / 255 for value in bytes.fromhex(colour))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
