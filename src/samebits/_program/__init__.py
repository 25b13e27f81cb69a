"""Reading the user's program: what a loop carries, draws, writes first, only prints, makes once and leaves.

Six questions, and who answers them:

| question | answer |
|---|---|
| what does an iteration read that an earlier one wrote? | `LoopFrames(frame).carried` |
| does an iteration write a value before it reads it? | `Program.order(...).written_first` |
| does a value flow only into output? | `Program.only_output(...)` |
| is a value made from constants alone? | `Program.made_once()` |
| does a function draw? | `Program.order(...).uses.draws(name)` |
| what does a function draw and leave changed? | `effects.read(function)` |

All names of functions that draw, put out, collect or calculate stand in `vocabulary`.

Read `vocabulary.py` first. Doors: here and in pyproject.toml. Imports: `_objects` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits._program import effects as effects
    from samebits._program.bytecode import begins_for as begins_for
    from samebits._program.carried_locals import liveness_at as liveness_at
    from samebits._program.control_flow import is_outside_of_body as is_outside_of_body
    from samebits._program.derived import derived_names as derived_names
    from samebits._program.functions import codes_of as codes_of
    from samebits._program.functions import methods as methods
    from samebits._program.functions import names_of_library as names_of_library
    from samebits._program.functions import names_set_by as names_set_by
    from samebits._program.loop_frames import LoopFrames as LoopFrames
    from samebits._program.loop_frames import release_locals as release_locals
    from samebits._program.loop_frames import take as take
    from samebits._program.output_only import OutputFlow as OutputFlow
    from samebits._program.program import Order as Order
    from samebits._program.program import Program as Program
    from samebits._program.program import fetch_methods as fetch_methods
    from samebits._program.sources import syntax_tree as syntax_tree
    from samebits._program.vocabulary import is_draw as is_draw
    from samebits._program.written_first import StoredPlace as StoredPlace

__getattr__, __dir__ = attach(__name__)
