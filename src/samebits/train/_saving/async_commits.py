"""The commits of a run: made by a process of their own where nobody waits for them, else here; the same bytes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from samebits._context import Position
from samebits._inspect import user_code
from samebits.checkpoint import CommitStore, store_for
from samebits.checkpoint._async_writer.state_layout import PlanError, StateLayout
from samebits.checkpoint._async_writer.writer.manifest_template import Commit
from samebits.checkpoint._async_writer.writer_client import Background, CommitReport, WriterDiedError
from samebits.checkpoint._manifest import canonical, check_plain, draft
from samebits.errors import CommitError
from samebits.train._saving.save_interval import Cadence
from samebits.train._state import compatibility

_LISTEN = 0.01
"""Seconds between two looks at what the writer process tells: a look is a call of the system, and steps may be shorter."""
_DEATHS = 3
"""Writer processes that may die before the run commits by itself."""


class Taken(NamedTuple):
    """A snapshot that was handed over."""

    number: int
    position: Position
    at: float


class CommitMetadata(NamedTuple):
    """What a commit says besides the state."""

    position: Position
    finished: bool
    program: Mapping[str, Any]
    environment: Mapping[str, Any]
    rolling: str | None
    value: float | None


class Commits:
    """Makes commits in `run_dir`, and knows which are durable."""

    def __init__(self, run_dir: Path | str, cadence: Cadence, keep: int, keep_best: int) -> None:
        self.cadence = cadence
        self.store = store_for(run_dir, keep, keep_best)
        self._keep, self._keep_best = keep, keep_best
        self._background: Background | None = None
        self._here = not isinstance(self.store, CommitStore)
        """Whether the run makes every commit itself."""
        self._deaths = self._base = self.written = 0
        self._listen = 0.0
        self.lag, self.lag_steps = 0.0, 0
        """Of a boundary's snapshot until it, or a later one, was durable: the most, in seconds and in steps."""
        self._plan: StateLayout | None = None
        self._taken: deque[Taken] = deque()
        """Snapshots of which neither they nor a later one are known to be durable."""
        self._constant: tuple[Mapping[str, Any], Mapping[str, Any], str, str] = ({}, {}, "", "")

    def due(self, step: int) -> bool:
        """Whether it is time for one that nobody waits for."""
        if self._background is not None and self.cadence.spares and not self._background.idle:
            return False
        last = self.store.last
        return self.cadence.due(step) and (last is None or last.step != step)

    def commit(
        self, state: dict[str, Any], facts: CommitMetadata, on_tensors_written: Callable[[], None]
    ) -> list[Position]:
        """Commits and waits until it is durable; also returns which snapshots from before have become so."""
        durable = self.settle()
        started = time.perf_counter()
        compatibility.check_copies(state["run_state"], state["objects"])
        self._base += 1  # the writer process, if there is one, goes on from this commit
        self.store.commit(
            facts.position.step,
            state,
            position=facts.position.to_dict(),
            finished=facts.finished,
            program=facts.program,
            environment=facts.environment,
            rolling=facts.rolling,
            value=facts.value,
            on_tensors_written=on_tensors_written,
        )
        self.cadence.took(time.perf_counter() - started)
        return [*durable, facts.position]

    def snapshot(self, state: dict[str, Any], facts: CommitMetadata) -> bool:
        """Takes a snapshot for the writer process; False: it cannot, and the run has to `commit`.

        Nothing that is changed after the return is in it. Where the writer is not done with those before, the newest
        that it has not begun gives way.
        """
        if self._here:
            return False
        started = time.perf_counter()
        try:
            self._hand_over(state, facts)
        except WriterDiedError as died:
            self._bury(died)
            return not self._here
        except PlanError:
            self._give_up(
                "the state keeps tensors in a deque, defaultdict or Counter. Use lists and dicts to have commits made "
                "by the writer process"
            )
            return False
        except OSError as error:
            self._give_up(f"there is no memory or process for it ({error})")
            return False
        self.cadence.took(time.perf_counter() - started)
        return True

    @property
    def under_way(self) -> bool:
        """Whether there is a commit of which it is not known that it is durable."""
        return bool(self._taken)

    def heard(self) -> list[Position]:
        """The boundaries whose commits have become durable since.

        Raises:
            CommitError: the disk refused one.
        """
        now = time.monotonic()
        if self._background is None or not self._taken or now < self._listen:
            return []
        self._listen = now + _LISTEN
        try:
            return self._durable(self._background.poll())
        except WriterDiedError as died:
            self._bury(died)
            return []

    def settle(self) -> list[Position]:
        """As `heard`, after waiting until nothing is under way."""
        if self._background is None:
            return []
        durable: list[Position] = []
        try:
            for report in self._background.drain():
                durable += self._durable([report])
        except WriterDiedError as died:
            self._bury(died)
        return durable

    def close(self) -> list[Position]:
        """As `settle`, then ends the writer process and gives the run directory back; a refused commit is a warning."""
        durable: list[Position] = []
        try:
            durable = self.settle()
        except CommitError as error:
            user_code.warn(str(error))
        finally:
            background, self._background = self._background, None
            if background is not None:
                background.close()
            with suppress(OSError):
                self.store.close()
        if self.written:
            commits = "1 commit was" if self.written == 1 else f"{self.written} commits were"
            print(
                f"samebits: {self.store.run_dir}: {commits} written beside the training, each durable within "
                f"{self.lag * 1e3:.0f} ms ({self.lag_steps} steps)",
                file=sys.stderr,
            )
        return durable

    def _hand_over(self, state: dict[str, Any], facts: CommitMetadata) -> None:
        assert isinstance(self.store, CommitStore)
        self.store.check_step(facts.position.step)
        plan, values, tree = self._read(state)
        program, environment = self._constants(facts)
        made = draft(
            plan.layout, step=facts.position.step, finished=facts.finished, tree=tree, rolling=facts.rolling,
            position=canonical(facts.position.to_dict()), program=program, environment=environment, value=facts.value,
        )  # fmt: skip
        if self._background is None:
            self._background = Background(self.store.run_dir, self._options())
        last, corrupt = self.store.last, sorted(self.store.shelf.corrupt)
        at = time.monotonic()  # before the writer can have it
        number = self._background.submit(
            plan, values, made, {"base": self._base, "last": last, "corrupt": corrupt}
        )
        if number is not None:
            self._taken.append(Taken(number, facts.position, at))

    def _read(self, state: dict[str, Any]) -> tuple[StateLayout, list[Any], str]:
        """The plan of `state`, its flat values and its tree."""
        if self._plan is not None and (values := self._plan.read(state)) is not None:
            tree = self._plan.text(values)
            if tree is not None:
                return self._plan, values, tree
        compatibility.check_copies(state["run_state"], state["objects"])
        self._plan = plan = StateLayout(state)
        values = plan.read(state)
        tree = None if values is None else plan.text(values)
        if values is None or tree is None:
            raise PlanError
        return plan, values, tree

    def _constants(self, facts: CommitMetadata) -> tuple[str, str]:
        """Program and environment as JSON; they hardly ever change."""
        known = self._constant
        if (known[0], known[1]) != (facts.program, facts.environment):
            for name in ("program", "environment"):
                check_plain(getattr(facts, name), (name,))
            known = (facts.program, facts.environment, canonical(facts.program), canonical(facts.environment))
            self._constant = known
        return known[2], known[3]

    def _options(self) -> dict[str, Any]:
        assert isinstance(self.store, CommitStore)
        return {
            "commits": str(self.store.shelf.commits),
            "keep": self._keep,
            "keep_best": self._keep_best,
            "identity": self.store.shelf.identity,
        }

    def _durable(self, reports: list[CommitReport]) -> list[Position]:
        positions = []
        for number, told in reports:
            if "errno" in told:
                self._taken.clear()
                error = OSError(told["errno"], told["strerror"], told["filename"])
                raise self.store.refused(error, told["step"], told["wanted"]) from error
            if "commit" in told:
                positions.append(self._note(number, told))
        return positions

    def _note(self, number: int, told: Mapping[str, Any]) -> Position:
        """A snapshot is durable, and so what came before it."""
        assert isinstance(self.store, CommitStore)
        self.store.shelf.last = Commit(*told["commit"])
        self.store.shelf.troubles += told["troubles"]
        self.store.warn()
        self.written += 1
        self.cadence.written(told["seconds"], told["cpu"])
        first, newest = self._taken[0], [taken for taken in self._taken if taken.at <= told["at"]][-1]
        while (taken := self._taken.popleft()).number != number:
            pass
        self.lag = max(self.lag, told["at"] - first.at)
        self.lag_steps = max(self.lag_steps, newest.position.step - first.position.step)
        return taken.position

    def _bury(self, died: WriterDiedError) -> None:
        """What it had begun is lost: the next snapshot holds it all. What it had finished counts."""
        assert isinstance(self.store, CommitStore)
        assert self._background is not None
        self._background.close(kill=True)
        self._background, self._plan = None, None
        self._taken.clear()
        self._deaths += 1
        self._base += 1
        self.store.look_again()
        if died.said:
            print(died.said, end="", file=sys.stderr)
        if self._deaths == _DEATHS:
            self._give_up(f"{died}, for the {_DEATHS}rd time")
            return
        print(
            f"samebits: the process that writes the commits of {self.store.run_dir} is gone: {died}. Another one is "
            "started; what was committed is untouched",
            file=sys.stderr,
        )

    def _give_up(self, why: str) -> None:
        self._here = True
        if self._background is not None:
            self.settle()
            self._background.close()
            self._background = None
        print(
            f"samebits: commits of {self.store.run_dir} are made by the run itself from now on: {why}",
            file=sys.stderr,
        )
