"""`make verdicts [BASE=<commit>]`: what the readers of programs say of every program in this tree, one line a verdict.

python tools/verdicts.py                  print the lines: program, path, question, answer, message
python tools/verdicts.py --base COMMIT    compare a git worktree of COMMIT with the working tree, on the programs of this tree
python tools/verdicts.py --quick          of few programs, which `tests/golden/verdicts.txt` has as one digest each
python tools/verdicts.py FOLDER ...       of the programs in these folders

A move of the readers changes no line. The programs are read, and not run; but the loops of `completeness_loops` train a few
steps with a `Run`, so that frames and objects are read, too, and the functions of `purity_corpus` and `purity_probes` are
read as a pipeline reads them. Exit status: 0 equal, or printed; 1 some lines differ; 2 COMMIT is no commit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

import samebits
from samebits._inspect.code_names import whole
from samebits._objects import budget
from samebits._objects.generators import generators_in
from samebits._objects.keepers import keepers
from samebits._program import assigned_attributes
from samebits._program import effects as purity
from samebits._program.bytecode import instructions, stored_names
from samebits._program.carried_locals import Liveness, names_read
from samebits._program.functions import NameUse, UserFunctions, kept_functions
from samebits._program.made_once import DataDependence
from samebits._program.output_only import OutputFlow
from samebits._program.written_first import ReadBeforeWrite, StoredPlace
from samebits.train._completeness import reachable_state

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
FOLDERS = ("tests", "examples", "lab", "bench")
QUICK = ("tests/broken",)
GOLDEN = ROOT / "tests" / "golden" / "verdicts.txt"
COMMITTED = frozenset({"model", "optimizer", "opt", "net", "run", "self"})
"""The names of objects of a run in most of these programs."""
EQUAL, DIFFERENT, NO_BASE = 0, 1, 2
STEPS = 20_000_000


class Verdict(NamedTuple):
    """One line."""

    program: str
    path: str
    question: str
    answer: str
    message: str = ""

    def __str__(self) -> str:
        return " | ".join(self)


def answer(value: Any) -> str:
    """Returns the answer as text; sets are sorted."""
    if isinstance(value, set | frozenset | dict):
        return " ".join(sorted(map(str, value)))
    if isinstance(value, tuple | list):
        return " / ".join(map(answer, value))
    return str(value)


def asked(question: Callable[[], Any]) -> tuple[str, str]:
    """Returns the answer to a question, and the message of an error."""
    try:
        with budget.one_check(STEPS):
            return answer(question()), ""
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def functions_of(code: CodeType) -> UserFunctions:
    """Returns the functions of a file whose code is not run."""
    known = object.__new__(UserFunctions)
    known.functions, known.constructors, known._codes = {}, {}, set()
    known._assigned, known.modules, known.has_packages = (0, frozenset()), [], False
    known.add(code)
    return known


def read_program(program: str, path: Path) -> Iterator[Verdict]:
    """Yields the verdicts on the code of a file: each loop, each variable, each attribute that it stores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(path.read_text(), str(path), "exec")
    known = functions_of(code)
    flow, dependence = OutputFlow(known.codes, COMMITTED), DataDependence(known.codes)
    loops = [(one, item) for one in whole(code) for item in instructions(one) if item.opname == "FOR_ITER"]
    loops = [
        (one, item) for one, item in loops if not one.co_name.startswith("<") or one.co_name == "<module>"
    ]
    attributes = sorted(
        {str(i.argval) for c in whole(code) for i in instructions(c) if i.opname == "STORE_ATTR"}
    )

    def say(path: str, question: str, of: Callable[[], Any]) -> Verdict:
        return Verdict(program, path, question, *asked(of))

    for number, (one, item) in enumerate(loops):
        at = f"{one.co_qualname}[{number}]:{item.positions.lineno if item.positions else ''}"
        live = Liveness(one, item.offset)
        yield say(at, "carried", live.carried)
        yield say(at, "carried, inner loops run", lambda live=live: live.carried(live.inner_loops))
        yield say(at, "left", live.left)
    for one in whole(code):
        at = f"{one.co_qualname}:{one.co_firstlineno}"
        stored = sorted({name for item in instructions(one) for name in stored_names(item)})
        if one.co_name != "<module>":
            yield say(at, "names read", lambda one=one: names_read(one))
            yield say(at, "draws", lambda one=one: NameUse(known, one).draws(one.co_name))
        yield say(at, "assigned targets", lambda one=one: assigned_attributes._targets(one))
        for name in stored:
            yield say(f"{at}.{name}", "only output", lambda one=one, name=name: flow.variable(one, name))
            yield say(
                f"{at}.{name}", "shared output", lambda one=one, name=name: flow.is_shared_output(one, name)
            )
            yield say(f"{at}.{name}", "global made once", lambda name=name: dependence.variable(name))
    yield say("", "kept functions", lambda: {one.co_qualname for one in kept_functions(known)})
    for name in ("self", "model", "sampler"):
        yield say(name, "steering", lambda name=name: flow.steering(name))
    order = (
        ReadBeforeWrite(known, [(loops[-1][0], loops[-1][1].offset)], [], {"model"}, [], ())
        if loops
        else None
    )
    uses = NameUse(known, loops[-1][0]) if loops else None
    for name in attributes:
        yield say(name, "only output", lambda name=name: flow.attribute(name))
        yield say(name, "made once", lambda name=name: dependence.attribute(name))
        if order is None or uses is None:
            continue
        yield say(name, "timed", lambda name=name: uses.timed(name))
        yield say(name, "memo", lambda name=name: uses.memo(name, []))
        for kind in ("attr", "set", "built", "item", "row", "part", "whole"):
            place = StoredPlace(kind, name)
            yield say(f"{name} ({kind})", "written first", lambda place=place: order.recomputed(place))
            yield say(f"{name} ({kind})", "read", lambda place=place: order.reads(place))
            yield say(f"{name} ({kind})", "read behind", lambda place=place: order.read_behind(place))
            yield say(f"{name} ({kind})", "settled", lambda place=place: order.settled(place))


def read_functions(module: str) -> Iterator[Verdict]:
    """Yields the verdicts on the functions of a module, as a pipeline reads them."""
    for name, function in sorted(vars(importlib.import_module(module)).items()):
        if (
            not callable(function)
            or name.startswith("_")
            or getattr(function, "__module__", module) != module
        ):
            continue
        reading = purity.read(function)
        text = sorted(f"{one} {one.file and Path(one.file).name}" for one in reading.findings.values())
        yield Verdict(module, name, "effects", " / ".join(text), f"complete={reading.complete}")
        yield Verdict(module, name, "may draw", str(reading.may_draw))
        yield Verdict(module, name, "holds", answer(sorted(reading.state)), answer(sorted(reading.globals)))
        found = [one.name.replace(str(ROOT), "") for one in keepers(function)]
        if not any("Logger" in one for one in found):  # the process's loggers are those of who runs this
            yield Verdict(module, name, "keepers", " / ".join(found))
        yield Verdict(
            module, name, "generators", " / ".join(one.path for one in generators_in([(name, function)]))
        )


def train_loops(module: str) -> Iterator[Verdict]:
    """Yields the places that the check looks at in each loop of a module, and the message that it ends with."""
    loops = importlib.import_module(module)
    forgetful = {name: loop for name, (loop, _) in loops.FORGETFUL.items()}
    for name, loop in (loops.ORDINARY | forgetful).items():
        samebits.set_random_seed(3)
        seen: dict[str, None] = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            _noting(seen),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            message = _end_of(loop, partial(samebits.Run, Path(folder) / "run"))
            said_texts = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
            text = "\n".join([message, *said_texts]).replace(folder, "FOLDER")
        for path in seen:
            yield Verdict(module, name, "looked at", path)
        for line in re.sub(r"0x[0-9a-f]+|\d+\.\d{4,}", "...", text).splitlines():
            yield Verdict(module, name, "message", line)


def _end_of(loop: Callable[..., Any], make: Callable[..., Any]) -> str:
    """Trains; in a function of its own, whose caller's variables are not those of a loop around it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            loop(make)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _noting(seen: dict[str, None]) -> Iterator[None]:
    """Notes the paths of all snapshots that are taken in this block."""
    take = reachable_state.take

    def noting(*given: Any, **named: Any) -> Any:
        taken = take(*given, **named)
        found = [*taken.leaves_by_path, *(f"name {one}" for one in taken.named)]
        seen.update(dict.fromkeys(sorted(found)))
        seen.update(dict.fromkeys(f"generator {one.path}" for one in taken.found))
        return taken

    reachable_state.take = noting
    try:
        yield
    finally:
        reachable_state.take = take


def programs(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yields the name and the file of each program in some folders."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if ".venv" not in path.as_posix() and "/." not in path.as_posix():
                yield f"{folder.name}/{path.relative_to(folder).as_posix()}", path


def made_programs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the repaired twins of tests/broken, and the scripts that tests make of texts, written to a folder."""
    pairs, ways, resets = map(importlib.import_module, ("script_pairs", "carried_state", "resets"))
    for script in pairs.BROKEN:
        yield f"repaired/{script.name}", pairs.repaired(script, folder)
    for kind, cases in (
        ("WAYS", ways.WAYS),
        ("ORDINARY", ways.ORDINARY),
        ("RESET", resets.RESET),
        ("SOMETIMES", resets.SOMETIMES),
    ):
        for number, (name, (before, inside)) in enumerate(cases.items()):
            path = folder / f"{kind}{number}.py"
            path.write_text(ways.SCRIPT.format(before=before, inside=inside))
            yield f"{kind}: {name}", path


def verdicts(folders: Iterable[Path], *, quick: bool) -> Iterator[Verdict]:
    """Yields all verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        made = [] if quick else made_programs(Path(folder))
        for name, path in [*programs(folders), *made]:
            try:
                yield from read_program(name, path)
            except (SyntaxError, UnicodeDecodeError) as error:
                yield Verdict(name, "", "not read", type(error).__name__)
    for module in ("purity_corpus", "purity_probes"):
        yield from read_functions(module)
    if not quick:
        yield from train_loops("completeness_loops")


def digests(lines: Iterable[Verdict]) -> list[str]:
    """Returns one line for each program: the number of its verdicts, and their digest."""
    found = defaultdict(list)
    for one in lines:
        found[one.program].append(str(one))
    return [
        f"{name} {len(texts)} {hashlib.sha256(chr(10).join(texts).encode()).hexdigest()[:16]}"
        for name, texts in found.items()
    ]


def _lines_of_base(commit: str, folders: list[Path]) -> list[str]:
    """Returns the lines that the tool of a commit prints, with that commit's readers, of these programs."""
    with tempfile.TemporaryDirectory() as folder:
        made = ["git", "worktree", "add", "--quiet", "--detach", folder, commit]
        if subprocess.run(made, check=False, cwd=ROOT).returncode:
            sys.exit(NO_BASE)
        try:
            base = Path(folder)
            paths = os.pathsep.join(map(str, (base / "src", SUPPORT, base)))
            command = [sys.executable, str(base / "tools" / "verdicts.py"), *map(str, folders)]
            text = subprocess.run(
                command,
                cwd=base,
                env={**os.environ, "PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            return text.stdout.splitlines()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def main() -> int:
    """Prints or compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--base", metavar="COMMIT")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    sys.path.extend([str(SUPPORT), str(ROOT)])
    torch.set_num_threads(1)
    names = QUICK if given.quick else FOLDERS
    folders = [one.resolve() for one in given.folders] or [ROOT / name for name in names]
    found = list(verdicts(folders, quick=given.quick))
    if given.quick:
        print(*digests(found), sep="\n")
        return EQUAL
    lines = [line for one in found for line in str(one).splitlines()]
    if given.base is None:
        print(*lines, sep="\n")
        return EQUAL
    before = _lines_of_base(given.base, folders)
    gone, new = Counter(before) - Counter(lines), Counter(lines) - Counter(before)
    moved = sorted(
        [f"- {one}" for one in gone.elements()] + [f"+ {one}" for one in new.elements()],
        key=lambda one: (one[2:].split(" | ")[:3], one),
    )
    print(
        *moved,
        f"{len(lines)} verdicts, {len(before)} at {given.base}: {'different' if moved else 'equal'}",
        sep="\n",
    )
    return DIFFERENT if moved else EQUAL


if __name__ == "__main__":
    sys.exit(main())
