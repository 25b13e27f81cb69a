"""`lower`: a captured step as a callable that rounds stochastically, alike on replicas and after a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from samebits._context import Words
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.replica import CapturedStep, analyze
from samebits.replica._capture.captured_step import CONSTANT, GENERATOR, check_step
from samebits.replica._capture.lifting import LiftedArguments
from samebits.rounding._transform.lowering import Lowering
from samebits.rounding._transform.lowering_rules import Rule, check_rules
from samebits.rounding._transform.process_groups import rank_of
from samebits.rounding._transform.seed_methods import assignment_of, verify_methods
from samebits.rounding.optim._streams import process_key

_STREAM = int_keys.as_uint64("samebits.rounding.lower")


def lower(
    step: CapturedStep,
    *,
    rounding: bool = True,
    seed: int | None = None,
    rank: int | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> LoweredStep:
    """Returns a captured step to call: ops with 16-bit results compute in float32 and round stochastically.

    Element i of a result is rounded by number i of the stream `fold_in(seed, step, op, class of this rank)`,
    the class being that of the ranks on which the result is equal by the report. So replicas stay equal, bit
    for bit, shards round with separate numbers, both under hybrid sharding too, whatever else a rank draws.

    Numerics, against the captured step:

    - 16-bit inputs are widened, exactly; matrix products and sums are those of float32;
    - a reduction over ranks is one of float32 values, rounded once; all_gather and the like move 16 bits as
      before, and a reduction is waited for where it starts;
    - an op that was captured as several (`dropout`, a layer norm's backward, an optimizer without `fused`)
      rounds after each; a cast to 16 bits is such an op; float64 is rounded to float32, to nearest, before;
    - an op that writes (in place, to a view, over lists) works on float32 copies, which are rounded into the
      memory of the originals; views, moves, draws, zeros and ones pass through.

    `op` is the text of the user's line, the op and its number among equal ones, below the ops whose bodies
    contain it, each with the number of the trip: an edit of other lines moves no stream.

    Args:
        step: a captured step with methods (`assign_methods`), unless `rounding` is off.
        rounding: False runs every op as captured: the result is the captured step, bit for bit.
        seed: by default the run's key, else the seed of the process; the same on all ranks.
        rank: by default that of the process group; set without one, only steps without collectives run.
        rules: for your own ops, by name: "float32", or "as it is" for an op that computes nothing.

    Raises:
        InvalidArgumentError: this is no captured step, it has no op with the name of a rule, or no such rank.
        RoundingMethodError: an op has no method, or has one although rounding is off; the graph was edited.
        UnimplementedError: no rule says how to round an op; it is named.
        ConflictError: the process group has another size, or no group has the ranks of a collective.

    Example:
        >>> x = torch.ones(100, dtype=torch.bfloat16)
        >>> captured = samebits.replica.capture(lambda x: x + 0.002, x, world_size=1)
        >>> methods = samebits.rounding.assign_methods(captured, samebits.replica.analyze(captured))
        >>> lowered = samebits.rounding.lower(captured, seed=1)
        >>> bool((x + 0.002 > 1).any()), bool((lowered(x) > 1).any())
        (False, True)
    """
    check_step("lower", step)
    user_rules = check_rules(rules, step.module)
    verify_methods(step, rounding=rounding)
    found = assignment_of(step)
    frame = found.frame if found else analyze(step).frame
    module = Lowering(step, rank_of(step, rank), user_rules, rounding=rounding).graph(frame)
    return LoweredStep(step, module, rounding=rounding, seed=seed)


class LoweredStep:
    """The result of `lower`: called with the step's arguments, it has its effects and returns its results.

    `step`, the number of the next call, and the key are its state, which another process can resume.

    Example:
        >>> x = torch.ones(100, dtype=torch.bfloat16)
        >>> captured = samebits.replica.capture(lambda x: x + 0.002, x, world_size=1)
        >>> methods = samebits.rounding.assign_methods(captured, samebits.replica.analyze(captured))
        >>> lowered = samebits.rounding.lower(captured, seed=1)
        >>> first, second = lowered(x), lowered(x)
        >>> lowered.step, torch.equal(first, second), torch.equal(first, lowered(x, step=0))
        (2, False, True)
    """

    def __init__(self, step: CapturedStep, module: GraphModule, *, rounding: bool, seed: int | None) -> None:
        self.module = module
        """The lowered graph; prints itself. Its inputs are the key of the step, then those of the step."""
        self.step = 0
        self._rounding, self._captured = rounding, step
        self._names = [name for name, kind in step.kinds.items() if kind not in {GENERATOR, CONSTANT}]
        held = (node.meta["val"] for node in step.module.graph.find_nodes(op="placeholder"))
        self._forms = [(tuple(one.shape), one.dtype) for one in held]
        self._key: Words | None = None
        if seed is not None:
            self.set_seed(seed)

    def __call__(self, *args: Any, step: int | None = None) -> Any:
        """Runs step number `step`, by default the next one, on `args`, as in `capture`.

        A given `step` is a replay: it rounds as that step did, and does not change the number of the next
        one. Raises `InvalidArgumentError` unless `args` have the tensors of the captured arguments, of their
        shapes and dtypes (an optimizer has no state before its first step), and the same numbers besides
        (learning rates, modes), `UnseededError` without any seed.
        """
        if step is not None and (not isinstance(step, int) or step < 0):
            raise InvalidArgumentError(
                f"the lowered step: step={step!r} is no number of a step; the first is 0."
            )
        inputs = self._inputs(args)
        self._check_forms(inputs)
        stream = (
            int_keys.fold(self._base(), self.step if step is None else step) if self._rounding else (0, 0)
        )
        with torch.no_grad():
            found = self.module(stream, *(one.detach() for one in inputs))
        self.step += step is None
        return pytree.tree_unflatten(found, self._captured.outputs)

    def _inputs(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        if len(args) == len(self._names) and all(isinstance(one, torch.Tensor) for one in args):
            return list(args)
        if len(args) != len(self._captured.arguments):
            raise InvalidArgumentError(
                f"the lowered step takes {len(self._captured.arguments)} arguments, "
                f"{', '.join(self._captured.arguments)}; got {len(args)}."
            )
        lifted = LiftedArguments(self._captured.arguments, args, copied=False)
        names = [slot.name for slot in lifted.slots]
        if names != self._names:
            odd = sorted(set(names) ^ set(self._names))
            raise InvalidArgumentError(
                f"the lowered step takes {', '.join(self._names)}; the arguments differ: {', '.join(odd)}. "
                "An optimizer gets its state with its first step or from load_state_dict."
            )
        self._check_numbers(lifted.numbers())
        return [slot.tensor for slot in lifted.slots]

    def _check_numbers(self, numbers: dict[str, Any]) -> None:
        """Raises if a number, such as a learning rate, has changed: the graph holds the captured one."""
        for path, then in self._captured.numbers.items():
            if path in numbers and numbers[path] != then:
                raise InvalidArgumentError(
                    f"the lowered step: {path} was captured as {then}, and is {numbers[path]} now; the graph "
                    "holds the number. Restore it, or capture and lower the step again."
                )

    def _check_forms(self, inputs: list[torch.Tensor]) -> None:
        """Raises if a shape differs: sizes (a mean's divisor) are numbers in the graph: wrong gradients."""
        for name, one, form in zip(self._names, inputs, self._forms, strict=True):
            if (tuple(one.shape), one.dtype) != form:
                raise InvalidArgumentError(
                    f"the lowered step: {name} was captured as {form[1]} of shape {form[0]}, and is "
                    f"{one.dtype} of shape {tuple(one.shape)}; capture and lower a step for these, too "
                    "(drop_last=True for the last batch)."
                )

    def set_seed(self, seed: int) -> None:
        """Uses another seed from now on; the step number stays. `InvalidArgumentError` if it is no int."""
        try:
            self._key = int_keys.fold(int_keys.root(seed), _STREAM)
        except TypeError:
            raise InvalidArgumentError(f"the lowered step: a seed is an int, got {seed!r}.") from None

    def state_dict(self) -> dict[str, Any]:
        """Returns the key and the number of the next step; empty with rounding off: there is no state."""
        return {"key": list(self._base()), "step": self.step} if self._rounding else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads key and step.

        The order does not matter: `set_seed` with the seed of the state, before or after, is the same.

        Raises `InvalidArgumentError` if this is no state of a lowered step, before anything is changed.
        """
        if not self._rounding and not state_dict:
            return
        given = state_dict if isinstance(state_dict, Mapping) else {}
        key, step = given.get("key", ()), given.get("step")
        pair = len(given) == 2 and isinstance(key, Sequence) and len(key) == 2
        whole = pair and all(isinstance(word, int) and 0 <= word < 2**64 for word in key)
        if not self._rounding or not whole or not isinstance(step, int) or step < 0:
            has = (
                "has a key of two 64-bit words and a step"
                if self._rounding
                else "with rounding off has no state"
            )
            raise InvalidArgumentError(f"load_state_dict: a lowered step {has}; got {state_dict}.")
        self._key, self.step = (key[0], key[1]), step

    def _base(self) -> Words:
        if self._key is not None:
            return self._key
        return process_key("the lowered step draws", _STREAM, "give lower(step, seed=...)")

    def __str__(self) -> str:
        return str(self.module.graph)
