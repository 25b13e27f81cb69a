"""The state with which code begins that a resumed run runs again: at an epoch's begin, or between two loops.

`for epoch in run.epochs(9): hard = hardest(model); for step, batch in epoch.steps(...)`: a run that is killed
in the steps enters the epoch's body again, and `hard` must follow from the weights of the epoch's begin. So
the commits of that epoch hold the state of its begin, too. The same holds between two loops of a run. It is
left out where the body, up to its steps, surely computes nothing from the state.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
from argparse import Namespace
from collections.abc import Mapping
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from samebits._dtensors import is_dtensor
from samebits._inspect import user_code
from samebits._objects.memory import fill_tensor
from samebits._program import syntax_tree
from samebits.checkpoint._codec import decode, encode
from samebits.errors import UnsavableStateError

EntryState = dict[str, Any]
"""A state as a commit has it: its tree as text, and copies of its tensors."""

_CALLED_FOR_EFFECT = frozenset(
    {"train", "eval", "zero_grad", "set_epoch", "step", "requires_grad_", "print", "write", "info", "debug"}
)
"""Methods of modules, optimizers, schedulers, samplers, logs: what they change is restored, or is output."""
_PLAIN = int | float | complex | str | bytes | type | type(None) | ModuleType | BuiltinFunctionType
_EXPRESSIONS = (
    ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Compare | ast.IfExp | ast.JoinedStr | ast.FormattedValue
    | ast.Tuple | ast.List | ast.Dict | ast.Set | ast.Starred | ast.Subscript | ast.Slice
)  # fmt: skip


def encoded(state: Mapping[str, Any]) -> EntryState | None:
    """Returns a copy of a state; None for one that cannot be saved."""
    try:
        tree, tensors = encode(dict(state))
    except UnsavableStateError:
        return None  # by the first commit it may be another
    return {"tree": json.dumps(tree), "tensors": {name: _copied(one) for name, one in tensors.items()}}


def decoded(entry: EntryState) -> dict[str, Any]:
    """Returns the state of which `encoded` made a copy."""
    return decode(json.loads(entry["tree"]), entry["tensors"])


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if is_dtensor(tensor):
        return tensor.clone()
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if tensor.numel():
        fill_tensor(copied, tensor)
    return copied


def may_read_state(frame: FrameType, objects: Mapping[str, Any]) -> bool:
    """Returns False if the body of the loop over epochs in `frame` computes nothing from the run's state
    before its steps, nor do the functions that have the steps.
    """
    tree = syntax_tree(frame.f_code.co_filename)
    loops = [one for one in ast.walk(tree or ast.Pass()) if isinstance(one, ast.For)]
    line = frame.f_lineno
    loop = next((one for one in loops if one.iter.lineno <= line <= (one.iter.end_lineno or 0)), None)
    if loop is None or not isinstance(loop.target, ast.Name):
        return True
    held = {id(getattr(one, "target", one)) for one in objects.values()}
    return _EpochBody({**frame.f_globals, **frame.f_locals}, held).may_read(loop.body, loop.target.id)


class _EpochBody:
    """Statements up to the steps of an epoch, and the values of names where they run."""

    def __init__(self, names: Mapping[str, Any], held: set[int], depth: int = 0) -> None:
        self._names, self._held, self._depth = names, held, depth

    def may_read(self, statements: list[ast.stmt], epoch: str) -> bool:
        """Returns True if a statement before the steps may read the state. `epoch`: the epoch's variable."""
        for statement in statements:
            if self._is_plain(statement):
                continue
            return not self._has_plain_steps(statement, epoch)
        return True  # the steps were not found

    def _has_plain_steps(self, statement: ast.stmt, epoch: str) -> bool:
        """Returns True for the loop over the steps, or a call of a function with it, that reads no state."""
        if isinstance(statement, ast.For):
            call: ast.expr = statement.iter
            while isinstance(call, ast.Call) and not _is_steps(call, epoch) and call.args:
                call = call.args[0]  # tqdm(epoch.steps(loader))
            return isinstance(call, ast.Call) and _is_steps(call, epoch) and self._passes_values(call)
        call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else ast.Constant(None)
        if not isinstance(call, ast.Call) or not self._passes_values(call) or self._depth > 2:
            return False
        function = self._value(call.func)
        tree = syntax_tree(function.__code__.co_filename) if isinstance(function, FunctionType) else None
        found = [
            one
            for one in ast.walk(tree or ast.Pass())
            if isinstance(one, ast.FunctionDef) and _begins(one) == function.__code__.co_firstlineno
        ]
        if len(found) != 1:
            return False
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        of_object = owner is not None and not isinstance(self._value(owner), type | ModuleType)
        named = {one.arg: one.value for one in call.keywords if one.arg}
        try:
            bound = inspect.signature(function).bind(*[owner] * of_object, *call.args, **named)
        except TypeError:
            return False
        names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        names |= {name: self._value(one) for name, one in bound.arguments.items()}
        given = (name for name, one in bound.arguments.items() if _is_named(one, epoch))
        body = _EpochBody(names, self._held, self._depth + 1)
        return not body.may_read(found[0].body, next(given, ""))

    def _is_plain(self, statement: ast.stmt) -> bool:
        """Returns True for a statement that surely computes nothing from the state."""
        if isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom | ast.Global):
            return True
        if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) or statement.value is None:
            return False
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            code = getattr(self._value(function), "__code__", None)
            if name in _CALLED_FOR_EFFECT and (code is None or user_code.is_library(code.co_filename)):
                return True
        stored = [one for one in ast.walk(statement) if isinstance(getattr(one, "ctx", None), ast.Store)]
        names = all(isinstance(one, ast.Name | ast.Tuple) for one in stored)
        return names and self._is_value(statement.value)

    def _is_value(self, node: ast.AST) -> bool:
        """Returns True for an expression that is made of constants, plain variables and new objects."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return isinstance(self._names.get(node.id), _PLAIN)
        if isinstance(node, ast.Attribute):
            return isinstance(self._value(node.value), ModuleType | Namespace)
        if isinstance(node, ast.Call):
            function = self._value(node.func)
            if function is len:
                return all(isinstance(one, ast.Name | ast.Attribute) for one in node.args)
            of_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
            made = of_text or isinstance(function, type | BuiltinFunctionType)
            return made and all(map(self._is_value, [*node.args, *(one.value for one in node.keywords)]))
        children = (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
        return isinstance(node, _EXPRESSIONS) and all(map(self._is_value, children))

    def _passes_values(self, call: ast.Call) -> bool:
        """Returns True for a call whose arguments are constants or names."""
        given = [*call.args, *(one.value for one in call.keywords)]
        return all(isinstance(one, ast.Constant | ast.Name) or self._value(one) is not None for one in given)

    def _value(self, node: ast.AST) -> Any:
        """Returns the value of `a` or `a.b.c`, where no code of a user's runs to give it; else None."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            found = None if owner is None else inspect.getattr_static(owner, node.attr, None)
            return None if isinstance(found, property) or id(owner) in self._held else found
        return None


def _is_steps(node: ast.AST, epoch: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "steps"
        and _is_named(node.func.value, epoch)
    )


def _is_named(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _begins(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])
