"""`samebits replica`: prove that a training step keeps its replicas equal, or name the line that does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits import cli
from samebits import replica as replicas
from samebits.cli import _json_output as json_output
from samebits.cli._error_messages import exit_on_user_error
from samebits.cli._option_values import whole_number
from samebits.errors import InvalidArgumentError

if TYPE_CHECKING:
    from samebits.replica import Report

SCHEMA = "samebits.replica/1"


def replica(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function without arguments that returns (step, args), or (step, args, declarations). "
            "MODULE:FUNCTION does, too.",
        ),
    ],
    *,
    world_size: Annotated[
        int | None, typer.Option(metavar="N", parser=whole_number(8, least=1), help="The number of ranks.")
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=N,...",
            help="A device mesh instead, such as dp=2,tp=4; the first axis is the slowest.",
        ),
    ] = None,
    json_file: json_output.JsonFile = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write a web page: the source with every operation under its line.",
        ),
    ] = None,
    dot_file: Annotated[
        Path | None,
        typer.Option("--dot", metavar="FILE", help="Also write the paths to what drifts, for Graphviz."),
    ] = None,
) -> None:
    """Prove that a training step keeps its replicas equal, or name the line where they part.

    It needs no GPU and no second process. FUNCTION is called once. Its `step` is captured as every rank would
    run `step(*args)`, and every operation is checked. `declarations` say how the inputs start: {"x":
    Equal()}.

    Exit status: 0 parameters, buffers and optimizer state stay as equal as declared; 1 one does not, or a
    collective hangs; 2 could not be checked.

    Examples:
        samebits replica --world-size 8 train.py:replica_step
        samebits replica --mesh dp=2,tp=4 --html step.html train.py:replica_step

    Read more: docs/how-to/replicas.md
    """
    json_output.check_json_file(json_file)
    if (world_size is None) == (mesh is None):
        raise InvalidArgumentError(
            "the number of ranks is missing. Give --world-size 8, or --mesh dp=2,tp=4."
        )
    axes = None if mesh is None else _axes(mesh)
    for option, file in (("--html", html_file), ("--dot", dot_file)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InvalidArgumentError(
                f"{option} {file}: there is no folder {file.absolute().parent}. Make it first."
            )
    with json_output.output_kept_for(json_file), exit_on_user_error(f"replica: {function}"):
        step, args, inputs = _call_function(function)
        with cli._reports.Progress("ranks captured") as progress:
            captured = replicas.capture(
                step, *args, world_size=world_size, mesh=axes, on_progress=progress.update
            )
        with cli._reports.Progress("nodes analysed") as progress:
            report = replicas.analyze(captured, inputs, on_progress=progress.update)
    cli._reports.replica_report.warn(report)
    if not json_output.is_standard_output(json_file):
        cli._reports.replica_report.show(report)
    if html_file is not None:
        replicas.write_html(report, html_file)
    if dot_file is not None:
        dot_file.write_text(replicas.dot_graph(report) + "\n", encoding="utf-8")
    json_output.write_json(json_file, _content(function, report))
    raise typer.Exit(1 if report.drifting or any(one.kind == "hang" for one in report.findings) else 0)


def _axes(text: str) -> dict[str, int]:
    axes = {}
    for word in text.split(","):
        name, equals, size = word.partition("=")
        if not (name and equals and size.isdecimal() and int(size)) or name in axes:
            raise InvalidArgumentError(f"--mesh {text!r}: must be axes and their sizes, such as dp=2,tp=4.")
        axes[name] = int(size)
    return axes


def _call_function(text: str) -> tuple[Any, tuple[Any, ...], Mapping[str, Any] | None]:
    """Returns the step, its arguments, and declarations or None, from the user's function."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise InvalidArgumentError(
            f"{text!r} names no function. "
            "Give MODULE:FUNCTION, as in train:replica_step or steps/train.py:replica_step."
        )
    is_file = module_name.endswith(".py")
    module = _load_file(Path(module_name)) if is_file else _import_module(module_name, text)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidArgumentError(f"{text}: module {module_name!r} has no function {name!r}.")
    made = function()
    several = isinstance(made, tuple) and len(made) in {2, 3}
    if not (several and callable(made[0]) and isinstance(made[1], tuple | list)):
        raise InvalidArgumentError(
            f"{text}: {name}() must return (step, args) or (step, args, declarations), not {_kind(made)}."
        )
    return made[0], tuple(made[1]), made[2] if len(made) == 3 else None


def _kind(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(one).__name__ for one in made)})"
    return type(made).__name__


def _import_module(name: str, text: str) -> ModuleType:
    folder = Path.cwd()
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # one that the user's module imports
        raise InvalidArgumentError(
            f"{text}: there is no module {name!r} in {folder} or on sys.path."
        ) from None


def _load_file(file: Path) -> ModuleType:
    """Returns the module of just this file: one of the same name (`profile`) may be imported already."""
    if not file.is_file():
        raise InvalidArgumentError(f"there is no file {file.absolute()}. Give FILE.py:FUNCTION.")
    sys.path.insert(0, str(file.absolute().parent))
    spec = spec_from_file_location(file.stem, file.absolute())
    module = module_from_spec(spec)  # type: ignore[arg-type]
    if file.stem not in sys.modules:  # what pickles by name finds it there
        sys.modules[file.stem] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _content(function: str, report: Report) -> dict[str, Any]:
    step, text = report.step, report.partitions.text
    values = [
        {
            "name": name,
            "kind": kind,
            "start": text(report.starts[name].partition),
            "end": text(report.ends[name].partition),
            "as_declared": name not in report.drifting,
        }
        for name, kind in step.kinds.items()
    ]
    ends = ((name, text(report.values[name].partition)) for name in step.output_names)
    values += [{"name": name, "kind": "output", "end": end} for name, end in ends]
    return {
        "schema": SCHEMA,
        "function": function,
        "world_size": step.world_size,
        "mesh": dict(step.mesh),
        "ranks_captured": list(step.captured),
        "values": values,
        "explanations": {name: report.explain_drift(name) for name in report.drifting},
        "findings": [{"kind": one.kind, "text": one.text, "line": one.line} for one in report.findings],
    }
