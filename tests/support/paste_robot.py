"""A robot that follows an error to the letter: it pastes the lines where the error says, and runs the script again.

`python tests/support/paste_robot.py [NAME ...]` prints for each program its errors, the number of lines pasted for each, and the end:
"equal" if the script that nobody kills and one that is killed and started again end with equal weights.
"""

import io
import os
import re
import runpy
import signal
import sys
import tempfile
import tokenize
import traceback
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer imports, once for all scripts

import samebits
from paste_programs import LIBRARY, PROGRAMS
from samebits import _digest as digest
from samebits._context import Observer, process
from samebits.train._committed_state import gather

ROUNDS = 3
"""More are no cure."""
PLACE = re.compile(r"(?:To save (?:it|them), in|In) (\S+\.py)(?:, (before|after) line (\d+))?:")
INSTEAD = re.compile(r"(\S+\.state\.(\w+)) instead of (\w+) in lines? ([\d, -]+)")
ERROR = re.compile(r"^(?:samebits\.errors\.)?(\w+(?:Error|Exception|Interrupt)): ", re.MULTILINE)


class Watch(Observer):
    """Counts the steps of a run, and kills the process when the batch of step `at` has been drawn."""

    def __init__(self, at):
        self.at, self.steps, self.run = at, 0, None

    def run_opened(self, run):
        self.run = run

    def step_begins(self, run, step, batch, *, ends_epoch):
        self.steps += 1
        if step.step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def child(script, folder, at, *, checks):
    """Runs the script in `folder`, in this process; prints its end, and its weights alone."""
    os.chdir(folder)
    sys.argv, sys.path[0] = [str(script), "run"], str(script.parent)
    warnings.simplefilter("ignore")
    process.observers.append(Watch(at))  # no variable has it: a run looks at those of its callers, too
    if at is not None:
        process.overrides = replace(process.overrides, commit_steps=(at - 1,))
    if not checks:
        process.overrides = replace(process.overrides, check_complete=False)
    names = runpy.run_path(str(script), run_name="__main__")
    watch = process.observers[0]
    modules = {name: one for name, one in names.items() if isinstance(one, torch.nn.Module)}
    own = {name: one.state_dict() for name, one in modules.items()}
    state = [] if watch.run is None else [content(gather(watch.run.objects).objects), dict(watch.run.state)]
    print("\nWEIGHTS", digest.of_value(own))
    print("END", watch.steps, digest.of_value([own, *state]))


def content(states):
    """The states of a run's objects, without which objects are still those of the beginning of this process."""
    inner = [(name, one, isinstance(one, dict)) for name, one in states.items()]
    return {name: {**one, "replaced": None} if is_dict else one for name, one, is_dict in inner}


def run(script, folder, at=None, *, checks=True):
    """What a script prints, and how it ends, as a process of its own without the seconds of its imports."""
    folder.mkdir(exist_ok=True)
    output = folder / "output"
    pid = os.fork()
    if pid == 0:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False, buffering=1)  # not what pytest has put there
        try:
            child(script, folder, at, checks=checks)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    return output.read_text(errors="replace")


def end(text):
    """The number of steps and the digest in the last line; None if the script has not come to its end."""
    found = re.findall(r"^END (\d+) (\S+)$", text, re.MULTILINE)
    return (int(found[-1][0]), found[-1][1]) if found else None


def weights_in(text):
    """The digest of the modules' weights at the end of a script; None if it has not come to its end."""
    found = re.findall(r"^WEIGHTS (\S+)$", text, re.MULTILINE)
    return found[-1] if found else None


@dataclass
class Cure:
    """What an error says to do to one file."""

    inserts: list = field(default_factory=list)
    """Line number, "before" or "after", and the text."""
    renames: list = field(default_factory=list)
    """The old name, the new one, and the numbers of the lines."""


def cures(text):
    """What the last error of an output says to paste, by file."""
    begin = [found.start() for found in ERROR.finditer(text)][-1]
    text_before, text = text[:begin], text[begin:]
    found, place = {}, None
    for line in text.splitlines():
        if header := PLACE.search(line):
            file, side, number = header.groups()
            place = file, int(number or 0), side
        elif line.endswith("before the loop:"):  # that of the traceback
            place = place_in(text_before, "before", "for ")
        elif line.endswith(". Type"):
            place = place_in(text_before, "instead of", "")
        elif not line.startswith("    "):
            place = None
        elif place is not None:
            cure = found.setdefault(place[0], Cure())
            if instead := INSTEAD.search(line):
                new, _, old, numbers = instead.groups()
                cure.renames.append((old, new, lines_in(numbers)))
            code = line[4:].split("  # ")[0]
            if code.strip() and place[2]:
                cure.inserts.append((place[1], place[2], code))
    return found


def place_in(trace, side, begin):
    """The last line of the user's in a traceback whose text begins so, as a place."""
    found = re.findall(rf'File "([^"]+)", line (\d+), in \S+\n +{begin}', trace)
    found = [one for one in found if "/site-packages/" not in one[0] and "/src/samebits/" not in one[0]]
    return (found[-1][0], int(found[-1][1]), side) if found else None


def with_call(line, typed):
    """A line whose call of the same function is the one that an error says to type."""
    if typed.startswith(("for ", " ")):
        return line if typed.startswith(" ") else line[: len(line) - len(line.lstrip())] + typed
    function = typed.partition("(")[0]
    begin = line.index(f"{function}(")
    depth, at = 0, begin
    while not (depth == 1 and line[at] == ")"):
        depth += (line[at] == "(") - (line[at] == ")")
        at += 1
    return line[:begin] + typed + line[at + 1 :]


def lines_in(numbers):
    """The numbers in "3, 5-7"."""
    parts = [part.split("-") for part in numbers.replace(" ", "").split(",") if part]
    return [number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)]


def renamed(text, old, new, lines):
    """A script with another name in some lines: no attributes, no keywords, no strings but in the braces of an f-string."""
    rows = text.splitlines(keepends=True)
    depth, before, places = 0, "", []
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token, after in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        depth += token.string in {"(", "[", "{"} and token.type == tokenize.OP
        depth -= token.string in {")", "]", "}"} and token.type == tokenize.OP
        is_name = token.type == tokenize.NAME and token.string == old and before not in {".", "global"}
        keyword = depth and after.string == "="
        if token.start[0] in lines and is_name and not keyword:
            places.append((token.start, token.string, new))
        elif (
            token.start[0] in lines
            and token.type == tokenize.STRING
            and "f" in token.string.split("'")[0].split('"')[0]
        ):
            inner = re.sub(
                r"\{[^{}]*\}",
                lambda braces: re.sub(rf"(?<![\w.]){old}(?!\w)", new, braces[0]),
                token.string,
            )
            places.append((token.start, token.string, inner))
        before = token.string
    for (row, column), was, now in reversed(places):
        line = rows[row - 1]
        rows[row - 1] = line[:column] + line[column:].replace(was, now, 1)
    return "".join(rows)


def paste(folder, found):
    """Follows the cure in the files of `folder`; returns the number of lines that it has touched."""
    touched = 0
    for name, cure in found.items():
        file = (folder / name).resolve()
        if not file.is_relative_to(folder.resolve()):  # never into samebits or a package
            raise AssertionError(f"pasted into {file}")
        text = file.read_text()
        for old, new, lines in cure.renames:
            text, touched = renamed(text, old, new, lines), touched + len(lines)
        rows = text.splitlines()
        for number, side, code in reversed(sorted(cure.inserts, key=lambda one: one[:2])):
            at = rows[number - 1]
            if side == "instead of":
                rows[number - 1] = with_call(at, code)
                continue
            indent = at[: len(at) - len(at.lstrip())]
            rows.insert(number - 1 if side == "before" else number, indent + code)
        file.write_text("\n".join(rows) + "\n")
        touched += len(cure.inserts)
    return touched


@dataclass
class Outcome:
    """What came of a script: its errors with the lines pasted for each, and its end."""

    rounds: list = field(default_factory=list)
    verdict: str = ""
    messages: list = field(default_factory=list)
    """The errors whose lines were pasted."""
    text: str = ""
    """The last error, where the verdict is not "equal"."""

    def __str__(self):
        pasted = ", ".join(f"{name}: {lines}" for name, lines in self.rounds) or "no error"
        return f"{pasted} | {len(self.rounds)} rounds | {self.verdict}"


def cure(script, scratch):
    """Runs a script whole, then killed twice and started again; pastes what an error says, and runs it again."""
    outcome = Outcome()
    weights = weights_in(run(script, scratch / "unchecked", checks=False))
    for number in range(ROUNDS + 1):
        outcome.verdict, text = attempt(script, scratch / f"round{number}")
        names = ERROR.findall(text)
        if outcome.verdict == "equal" and weights not in (None, weights_in(text)):
            outcome.verdict = "OTHER WEIGHTS THAN WITHOUT WHAT WAS PASTED"
        if outcome.verdict == "equal" or outcome.verdict.startswith("OTHER") or not names:
            return outcome
        found = cures(text)
        outcome.text = text
        if not found:
            outcome.rounds.append((names[-1], 0))
            outcome.verdict = "words"
            return outcome
        outcome.rounds.append((names[-1], paste(script.parent, found)))
        outcome.messages.append(text[[found.start() for found in ERROR.finditer(text)][-1] :])
    return outcome


def attempt(script, scratch):
    """The verdict on a script as it is, and the text of the run that did not come to its end."""
    scratch.mkdir()
    text = run(script, scratch / "whole")
    whole = end(text)
    if whole is None:
        return "no end", text
    steps, bits = whole
    same = True
    for at in sorted({max(2, steps // 3), max(2, 2 * steps // 3)}):
        folder = scratch / f"killed{at}"
        run(script, folder, at)
        text = run(script, folder)
        if end(text) is None:
            return "refused at the resume", text
        same &= end(text)[1] == bits
    return "equal" if same else "OTHER WEIGHTS", text


def cured(text, scratch):
    """The outcome of the text of a script."""
    (scratch / "program" / "site-packages").mkdir(parents=True)
    (scratch / "program" / "site-packages" / "counterlib.py").write_text("import os\n" + LIBRARY)
    (script := scratch / "program" / "train.py").write_text(text)
    return cure(script, scratch)


def main():
    assert samebits.Run
    torch.set_num_threads(1)
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(name).read_text() if name not in PROGRAMS else PROGRAMS[name]
            outcome = cured(text, Path(folder))
            print(f"{Path(name).name[:44]:44} {outcome}", flush=True)
            if "-v" in os.environ.get("ROBOT", "") and outcome.text:
                print(outcome.text[-3000:])
            if "-m" in os.environ.get("ROBOT", ""):
                print(*outcome.messages, sep="\n")


if __name__ == "__main__":
    main()
