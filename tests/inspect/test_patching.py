"""Attributes that are replaced for a time: put back in any order, and never over what somebody else has put there."""

import types
import warnings

import pytest

from samebits._inspect.patching import Patches, replaced


class Owner:
    """Has an attribute."""

    name = "original"


class Heir(Owner):
    """Inherits it."""


@pytest.fixture
def quiet():
    """Fails where undoing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def put(value, owner=Owner):
    patches = Patches()
    patches.put(owner, "name", value)
    return patches


def test_a_patch_holds_until_it_is_undone(quiet):
    """The attribute is what it was, also after a second undo."""
    patches = put("ours")
    assert Owner.name == "ours"
    patches.undo(), patches.undo()
    assert Owner.name == "original"


def test_a_block_puts_back_through_an_exception(quiet):
    """`replaced` undoes at the end of the block, however it ends; what was inherited is inherited again."""
    with pytest.raises(ZeroDivisionError), replaced(Heir, "name", "ours"):
        assert (Heir.name, Owner.name) == ("ours", "original")
        raise ZeroDivisionError
    assert Heir.name == "original" and "name" not in vars(Heir)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_patches_of_one_attribute_are_undone_in_any_order(order, quiet):
    """The last that holds is what the attribute is; after all of them it is the original."""
    patches = [put(number) for number in range(3)]
    held = [0, 1, 2]
    for number in order:
        patches[number].undo()
        held.remove(number)
        assert Owner.name == (held[-1] if held else "original")


def test_one_object_may_patch_an_attribute_twice(quiet):
    """Undone as one, in reverse order."""
    patches = put("first")
    patches.put(Owner, "name", "second")
    patches.undo()
    assert Owner.name == "original"


def test_what_somebody_else_has_put_there_is_left(recwarn):
    """A replacement that is not ours stays, and a warning at the user's line names it."""
    patches = put("ours")
    try:
        Owner.name = "theirs"
        patches.undo()
        assert Owner.name == "theirs"
        assert [str(one.message) for one in recwarn] == [
            "Owner.name was replaced while samebits had replaced it. It is left so."
        ]
        assert recwarn[0].filename == __file__
    finally:
        Owner.name = "original"


def test_what_somebody_else_has_put_between_two_patches_is_left():
    """The upper patch puts back what it found, whichever of ours is undone first."""
    for first in (0, 1):
        lower = put("lower")
        Owner.name = "theirs"
        both = [lower, put("upper")]
        with pytest.warns(UserWarning) if first == 1 else warnings.catch_warnings():
            both[first].undo()
            both[1 - first].undo()
        assert Owner.name == "theirs"
        Owner.name = "original"


def test_equal_values_are_told_apart_by_identity(quiet):
    """An owner whose attributes compare in odd ways (arrays, tensors) is put back as any other."""
    odd = type("Odd", (), {"__eq__": lambda self, other: True, "__hash__": None})
    owner = types.SimpleNamespace(name=odd())
    before = owner.name
    patches = put(odd(), owner)
    patches.undo()
    assert owner.name is before
