"""docs/reference/glossary.md: the glossary names what there is."""

import re
from functools import reduce

import pytest

import samebits
from samebits.determinism.table._verdict_names import VERDICTS

NAME = re.compile(r"`samebits\.([\w.]+)`")


def glossary(root):
    """The text of the page, on one line."""
    return " ".join((root / "docs" / "reference" / "glossary.md").read_text().split())


def missing(text):
    """The names of samebits in the text that do not exist, and the verdicts of the op table that are none."""
    found = []
    for name in NAME.findall(text):
        try:
            reduce(getattr, name.split("."), samebits)
        except AttributeError:
            found.append(name)
    verdicts = re.search(r"the op table says of an overload: ([^.]*), and so on", text)[1].split(", ")
    return found + [word for word in verdicts if word not in VERDICTS]


def test_each_name_of_the_glossary_exists(root):
    """Every `samebits.NAME` can be imported, and every verdict that it lists is one of the op table's."""
    text = glossary(root)
    assert len(NAME.findall(text)) > 10 and missing(text) == []


@pytest.mark.parametrize("right, wrong", [("`samebits.Run`", "`samebits.Walk`"), ("refused,", "replaced,")])
def test_a_name_that_does_not_exist_is_found(root, right, wrong):
    """Negative control: one name of the page changed."""
    text = glossary(root)
    assert right in text and missing(text.replace(right, wrong)) == [
        wrong.strip("`,").removeprefix("samebits.")
    ] * text.count(right)
