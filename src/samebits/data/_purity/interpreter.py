"""The interpreter's interface to heap, globals and libraries."""

from __future__ import annotations

from typing import Protocol

from samebits.data._purity.abstract_values import CellValue, Made, Value


class Host(Protocol):
    """The interface of a frame to everything around it."""

    def called(
        self, callee: Value, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        """Returns the possible results of a call."""
        ...

    def attribute(self, of: Value, name: str, line: int) -> Value:
        """Returns the possible values of `of.name`."""
        ...

    def item(self, of: Value, index: Value, line: int) -> Value:
        """Returns the possible values of `of[index]`."""
        ...

    def inside(self, of: Value, line: int) -> Value:
        """Returns the values that a loop over `of` may yield."""
        ...

    def holds(self, made: Value, more: Value) -> None:
        """Something is put into what was made."""
        ...

    def changed(self, of: Value, how: str, line: int, part: str = "") -> None:
        """An object is changed."""
        ...

    def combined(self, left: Value, right: Value, *, writes_in_place: bool, line: int) -> Value:
        """Returns the possible results of an operator."""
        ...

    def entered(self, of: Value, line: int) -> Value:
        """Returns the possible results of `with of`."""
        ...

    def initialised(self, of: Value, name: str) -> None:
        """Notes a lazy initialisation, `if x is None: x = f()`, whose value depends on no element."""
        ...

    def stored(self, cell: CellValue, line: int) -> None:
        """A variable that outlives the call is set."""
        ...

    def stored_global(self, name: str, line: int) -> None:
        """A global variable is set."""
        ...

    def named_global(self, name: str, line: int) -> Value:
        """Returns the possible values of a global variable."""
        ...

    def imported(self, name: str) -> Value:
        """Returns the possible results of an import."""
        ...
