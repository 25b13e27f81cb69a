"""`Lambda`: hooks from functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from samebits.callbacks._base import HOOKS, Callback
from samebits.callbacks._callback_errors import check
from samebits.errors import InvalidArgumentError


class Lambda(Callback):
    """Calls functions as hooks: `Lambda(on_epoch_end=lambda trainer, epoch, logs: print(epoch, logs))`.

    Args:
        state: values that the functions keep from one call to the next; part of every commit, and filled in
            place by a resume. Values kept elsewhere are lost.
        hooks: functions by the name of their hook, with the arguments of `Callback`'s method.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> tell = samebits.callbacks.Lambda(on_epoch_end=lambda trainer, epoch, logs: print(epoch))
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=[tell])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=2, verbose=0)
        0
        1
    """

    def __init__(self, state: dict[str, Any] | None = None, **hooks: Callable[..., None]) -> None:
        check("Lambda", state=state)
        for name, hook in hooks.items():
            if name not in HOOKS:
                known = ", ".join(HOOKS)
                raise InvalidArgumentError(f"Lambda({name}=...): there is no such hook. Hooks are {known}.")
            if not callable(hook):
                raise InvalidArgumentError(f"Lambda({name}={hook!r:.60}): give a function.")
        self.state = {} if state is None else state
        vars(self).update(hooks)  # an attribute of the instance comes before the class's method

    def state_dict(self) -> dict[str, Any]:
        """Returns the dict's values."""
        return dict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Fills the dict."""
        self.state.clear()
        self.state.update(copy.deepcopy(state_dict))
