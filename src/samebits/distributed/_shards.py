"""`Shards`: the logical shards of a step's global batch that this process computes.

A step's batch is S shards for any number of processes W. What is computed hangs on the shard, never on the
rank: its rows (i, i + S, ...), the keys of its draws, the buffers that its forward reads, its place in every
sum. So the weights after the step have the same bits for each W from 1 to S.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samebits._context import Words, process
from samebits._dtensors import is_dtensor
from samebits._inspect.patching import Patches
from samebits.data._calls.own_generators import OwnGenerators, put_back
from samebits.distributed._buffers import Buffers
from samebits.distributed._fsdp2 import Fsdp2Sum, fsdp_modules, refuse_sums_and_draws, reshard
from samebits.distributed._gloo_messages import GlooGroup
from samebits.distributed._ordered_sum import GradientSum, OneProcessSum, OrderedSum, changed_error
from samebits.distributed._refusals import named_parameters, parameters_of_optimizer
from samebits.errors import InvalidArgumentError, RanksError


class ShardedLoop:
    """The shards of one loop: gradients, buffers, keys and values of its steps."""

    def __init__(
        self,
        count: int,
        group: GlooGroup | None,
        objects: Mapping[str, Any],
        begin_body: Callable[[tuple[str | int, ...]], Words],
    ) -> None:
        """`group`: of several processes. `begin_body` sets the keys of a part, and returns its own."""
        self.count, self.group = count, group
        self.rank, self.world_size = (0, 1) if group is None else (group.rank, group.world_size)
        self.numbers = range(self.rank, count, self.world_size)
        self._objects, self._begin_body = objects, begin_body
        self._buffers = Buffers()
        self._generators = OwnGenerators(
            lambda: [[(name, getattr(thing, "target", thing)) for name, thing in objects.items()]]
        )
        """Generators that are objects of the run, or parts of one."""
        self._modules = fsdp_modules(objects)
        self._sums: list[GradientSum]
        """One, or that of replicated parameters and then that of sharded ones."""
        if group is None:
            self._sums = [OneProcessSum()]
        else:
            self._sums = [plain := OrderedSum(group, count)]
            if self._modules:
                self._sums.append(Fsdp2Sum(group, plain, self._modules))
        self._sum = self._sums[-1]
        self._known: list[int] = []
        self._named: list[tuple[str, torch.nn.Parameter]] = []
        self._trained: set[int] = set()
        """The ids of the parameters that have required a gradient."""
        self._optimizer_hook = register_optimizer_step_pre_hook(self._check_step)
        self._patches = Patches()
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            self._patches.put(owner, "zero_grad", self._checked(owner.zero_grad))
        if self._modules:
            refuse_sums_and_draws(self._patches)
            self._patches.put(process, "rows_by_place", True)
        self._pass = 0
        self._under_way = False

    def begin_step(self) -> None:
        """Begins a step. Raises `InvalidArgumentError` if the loop over the shards before was left."""
        self.check_over()
        self._pass = 0
        self._set_parameters()  # so that a backward before the shards is seen

    def check_over(self) -> None:
        """Raises `InvalidArgumentError` while a loop over the shards is under way."""
        if self._under_way:
            self._raise_left("the step is over")

    def batches(self, own: Sequence[Any]) -> Iterator[Any]:
        """Yields the batches of this rank's shards; when they are over, the gradients are whole."""
        if self._under_way:
            self._raise_left("another one begins")
        self._under_way = True
        self._set_parameters()
        self._sum.begin_pass(self._pass)
        modules = [(name, one) for name, one in self._objects.items() if isinstance(one, torch.nn.Module)]
        self._buffers.begin_pass(modules)
        self._generators.follow()
        states = self._generators.save()
        more: list[tuple[int, Any]] = []
        if self._runs_more:
            # a copy, for the body may change its own
            more = [(self.numbers[-1] + self.world_size, copy.deepcopy(own[0]))]
        for number, batch in [*zip(self.numbers, own, strict=True), *more]:
            key = self._begin_body(("shard", number, *(("pass", self._pass) if self._pass else ())))
            if states:
                self._generators.set(key)
            self._sum.begin_round()
            for one in self._sums:
                one.in_shard = True
            yield batch
            for one in self._sums:
                one.in_shard = False
            self._sum.end_round()
            self._buffers.end_shard(number)
        put_back(states)  # they are where they were: the draws of shards hang on the shard
        self._check_known()
        self._buffers.end_pass(self._sum.end_pass(self._buffers.flags()), self._sum.broadcast)
        reshard(self._modules)
        self._under_way = False
        self._begin_body(("after", self._pass))
        self._pass += 1

    def real(self, values: Iterable[Any]) -> list[Any]:
        """Returns the values of this rank's shards, without that of a body that FSDP2 alone needed."""
        own = list(values)
        more = self._runs_more and len(own) == len(self.numbers) + 1
        return own[:-1] if more else own

    def close(self) -> None:
        self._optimizer_hook.remove()
        self._patches.undo()
        self._sum.close()

    def _checked(self, zero_grad: Callable[..., None]) -> Callable[..., None]:
        """Returns `zero_grad` for outside of the shards: on several ranks there is nothing to see of it."""

        @functools.wraps(zero_grad)
        def checked(owner: Any, *args: Any, **kwargs: Any) -> None:
            if self._under_way and self._has_parameters(owner):
                raise changed_error("zero_grad is called")
            zero_grad(owner, *args, **kwargs)

        return checked

    @property
    def _runs_more(self) -> bool:
        """True for a rank that has no shard in the last round, where FSDP2's collectives need it."""
        return len(self._sums) > 1 and len(self.numbers) < -(-self.count // self.world_size)

    def _set_parameters(self) -> None:
        """Hands each sum its parameters. Raises `InvalidArgumentError` for modules sharded since."""
        if [id(module) for _, module in fsdp_modules(self._objects)] != [id(one) for _, one in self._modules]:
            raise InvalidArgumentError(
                f"run.steps(shards={self.count}): fully_shard was called after the loop began, and the "
                "parameters that the run and the optimizer know are no longer those of the model. Call it "
                "before the optimizer is made, and before samebits.Run."
            )
        reshard(self._modules)
        named = self._parameters()
        if len(self._sums) == 1:
            self._sum.set_parameters(named)
            return
        for one, sharded in zip(self._sums, (False, True), strict=True):
            one.set_parameters([(name, each) for name, each in named if is_dtensor(each) is sharded])

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Returns the parameters that have required a gradient: frozen ones are not sent."""
        now = [id(one) for one in self._objects.values()]
        now += [id(one) for thing in self._objects.values() for one in parameters_of_optimizer(thing)]
        if now != self._known:  # another object, or an optimizer with other parameters
            self._known, self._named = now, named_parameters(self._objects)
        self._trained.update(id(one) for _, one in self._named if one.requires_grad)
        return [named for named in self._named if id(named[1]) in self._trained]

    def _check_known(self) -> None:
        """Raises `InvalidArgumentError` for a parameter that was first unfrozen between two shards."""
        for name, parameter in self._named:
            if parameter.grad is not None and id(parameter) not in self._trained:
                raise InvalidArgumentError(
                    f"run.steps(shards={self.count}): {name} was unfrozen inside the loop over the shards. "
                    "Call requires_grad_(True) before the loop."
                )

    def _check_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._check_of_run(optimizer)
        if self._under_way and self._has_parameters(optimizer):
            self._raise_left(f"{type(optimizer).__name__}.step() is called")
        reshard(self._modules)

    def _check_of_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises `InvalidArgumentError` for gradients of parameters that the run does not know."""
        for parameter in parameters_of_optimizer(optimizer):
            known = id(parameter) in self._trained or parameter.grad is None
            if not known and self._pass and isinstance(parameter, torch.nn.Parameter):
                raise InvalidArgumentError(
                    f"run.steps(shards={self.count}): {type(optimizer).__name__} has a parameter of shape "
                    f"{tuple(parameter.shape)} that the run does not know, with a gradient of this process "
                    "alone. Give its module and the optimizer to samebits.Run, or to run.add."
                )

    def _has_parameters(self, owner: Any) -> bool:
        """Returns True if an optimizer or a module has parameters of the run: it may have another within."""
        named = named_parameters({"": owner})
        return any(id(parameter) in self._trained for _, parameter in named)

    def _raise_left(self, event: str) -> NoReturn:
        raise InvalidArgumentError(
            f"run.steps(shards={self.count}): {event}, and the loop over the shards has not come to its end, "
            "so that the gradients are not whole. Read all shards (no `break`), and step the optimizer after "
            "the loop: at the indentation of `for ... in shards:`."
        )


class Shards(Iterable[Any]):
    """The batches of this rank's shards, in the body of a step: `for x, y in shards:`.

    At the end of the loop each parameter has the whole gradient, on all ranks: those of all shards, added in
    their order, as one process adds them. It must be read to its end, and may be read again in the same step
    (a second pass draws other numbers).

    Example:
        >>> samebits.set_random_seed(1)
        >>> loader = samebits.data.DataLoader(torch.arange(8.0), batch_size=4)
        >>> with samebits.Run(None) as run:
        ...     for step, shards in run.steps(loader, epochs=1, shards=2):
        ...         print(shards.sum([float(rows.sum()) for rows in shards]))
        6.0
        22.0
    """

    def __init__(self, loop: ShardedLoop, own: Sequence[Any]) -> None:
        self._loop, self._own = loop, own

    def __iter__(self) -> Iterator[Any]:
        return self._loop.batches(self._own)

    def __len__(self) -> NoReturn:
        raise TypeError(
            "len(shards): the number of this rank's shards depends on the number of processes, and so would "
            f"all that is computed from it. step.shards is the number of all shards ({self._loop.count})."
        )

    def sum(self, values: Iterable[Any]) -> Any:
        """Returns the sum over all shards, added in their order: the same bits on all ranks, for any number.

        Every rank calls it, at the same place.

        Args:
            values: one for each shard that this rank ran, in their order: numbers, tensors of one element, or
                dicts of them.

        Returns:
            A float; of dicts, a dict of floats.

        Raises:
            RanksError: a rank has another number of values than shards, or other names.
            InvalidArgumentError: a name is no text.
        """
        return sum_in_order(self._loop.real(values), self._loop.count, self._loop.group, "shards.sum")

    def gather(self, values: Iterable[Any]) -> list[dict[str, float]]:
        """Returns the values of all shards, in their order; the arguments and errors are those of `sum`."""
        return in_order(self._loop.real(values), self._loop.count, self._loop.group, "shards.gather")


def sum_in_order(values: Sequence[Any], count: int | None, group: GlooGroup | None, call: str) -> Any:
    """Returns the sum of the values of all ranks, added in the order of `in_order`."""
    ordered = in_order(values, count, group, call)
    sums = {name: added(one[name] for one in ordered) for name in (ordered[0] if ordered else {})}
    return sums.get("", sums or 0.0)


def in_order(
    values: Sequence[Any], count: int | None, group: GlooGroup | None, call: str
) -> list[dict[str, float]]:
    """Returns the values of all ranks as dicts of floats: 0 of rank 0, of rank 1, ..., then 1 of rank 0, ...

    `count`: how many there are over all ranks; None: not known. Raises `RanksError` on all ranks for another
    number, or other names.
    """
    own = [value if isinstance(value, dict) else {"": value} for value in values]
    if any(not isinstance(name, str) for one in own for name in one):
        raise InvalidArgumentError(f"{call}: the names in a dict are texts: {{'loss': ...}}.")
    plain = [{name: float(each) for name, each in one.items()} for one in own]
    of_ranks = [plain] if group is None else group.gather_values(plain, f"in {call}")
    ranks = len(of_ranks)
    total = sum(map(len, of_ranks)) if count is None else count
    expected = [len(range(rank, total, ranks)) for rank in range(ranks)]
    if [len(one) for one in of_ranks] != expected:
        found = ", ".join(f"rank {rank}: {len(one)}" for rank, one in enumerate(of_ranks))
        raise RanksError(
            f"{call}: give one value for each {'batch' if count is None else 'shard'} that this rank ran, in "
            f"their order: append it in the body of the loop. Expected {expected}, got {found}."
        )
    ordered = [of_ranks[number % ranks][number // ranks] for number in range(total)]
    if any(one.keys() != ordered[0].keys() for one in ordered):
        names = sorted({name for one in ordered for name in one})
        raise RanksError(f"{call}: give the same names for each value; among these some lack: {names}.")
    return ordered


def added(values: Iterable[float]) -> float:
    """Returns the sum from left to right: Python 3.12's `sum` of floats compensates."""
    return functools.reduce(operator.add, values, -0.0)
