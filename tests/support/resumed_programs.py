"""Programs that keep all that they carry, each killed by SIGKILL at several steps and started again: a resume must not say a word.

`python tests/support/resumed_programs.py [PART ...]` prints each program with its kills and what a resumed run raised, and the
counts. Every commit has a note here, whatever it costs. The processes are forks of one that has imported all.
"""

import dataclasses
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo

import samebits
from samebits._context import Observer, process
from samebits.errors import IncompleteStateError, ResumeMismatchError
from samebits.train._completeness import commit_notes

ROOT = Path(__file__).parent.parent.parent
ALARM, OTHER = 3, 4
KILLS = tuple(map(int, os.environ.get("KILLS", "2,5,9").split(",")))


class KilledAt(Observer):
    """Kills the process when a step begins, counted over the whole process."""

    def __init__(self, step):
        self._step = step

    def step_begins(self, run, position, batch, *, ends_epoch):
        if position.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_fork(program, folder, kill=None):
    """What became of `program(folder)` in a process of its own: "ended", "killed", or the error's text."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code, log = 0, open(folder / "log", "a")  # noqa: SIM115
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
        try:
            commit_notes._FIRST_SHARE = commit_notes._FIRST_SECONDS = 1e9
            process.overrides = dataclasses.replace(process.overrides, commit_steps=frozenset(range(1000)))
            if kill is not None:
                process.observers.append(KilledAt(kill))
            warnings.simplefilter("ignore")
            samebits.set_random_seed(3)
            program(folder)
        except ResumeMismatchError as error:
            (folder / "error").write_text(str(error))
            code = ALARM
        except SystemExit as error:
            code = error.code or 0
        except BaseException as error:  # noqa: BLE001
            (folder / "error").write_text(traceback.format_exc())
            code = ALARM + 2 if isinstance(error, IncompleteStateError) else OTHER
        finally:
            log.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed"
    code = os.WEXITSTATUS(status)
    return {0: "ended", ALARM: "ALARM", 5: "incomplete"}.get(code, f"failed ({code})")


def outcomes(program, kills=KILLS):
    """What became of each resumed run, and the text of the last error."""
    found, text = [], ""
    for kill in kills:
        folder = Path(tempfile.mkdtemp(prefix="resumed-"))
        try:
            if in_a_fork(program, folder, kill) == "killed":
                found.append(in_a_fork(program, folder))
            else:
                found.append("not killed")
            if (folder / "error").exists():
                text = (folder / "error").read_text()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found, text


def loops():
    """The ordinary loops of the check's tests."""
    import completeness_loops

    for name, loop in completeness_loops.ORDINARY.items():
        yield (
            name,
            lambda folder, loop=loop: loop(lambda **given: samebits.Run(folder / "run", save=1, **given)),
        )


def scripts(lines):
    """Scripts of ten lines of `carried_state` or `installed_state`."""
    import carried_state

    def run(folder, before, inside):
        script = carried_state.SCRIPT.format(before=before, inside=inside).replace(
            "save=1 if", "save=1 if True or"
        )
        (folder / "script.py").write_text(script)
        os.chdir(folder)
        sys.argv = ["script.py", "run"]
        runpy.run_path("script.py", run_name="__main__")

    for name, pair in lines.items():
        yield name, lambda folder, pair=pair: run(folder, *(pair))


def carried():
    import carried_state

    yield from scripts({f"carried: {name}": pair for name, pair in carried_state.ORDINARY.items()})


def installed():
    import installed_state

    for name, lines in installed_state.HARMLESS.items():
        for place in (True, False):

            def run(folder, lines=lines, place=place):
                pair = installed_state.script(*lines, folder, installed=place)
                dict(scripts({"": pair}))[""](folder)

            yield f"installed: {name} ({place})", run


def lab():
    """The programs of `lab/programs`, whose shared loop is one of a run here."""
    sys.path.insert(0, str(ROOT))
    from lab.programs import generative, others, registry, sequences, vision

    def run(folder, program):
        def trained(model, loss, optimizer=torch.optim.Adam, *, steps=3, clip=0.0, **options):
            parameters = [*model.parameters()] if isinstance(model, torch.nn.Module) else [*model]
            module = model if isinstance(model, torch.nn.Module) else torch.nn.ParameterList(parameters)
            chosen = optimizer(parameters, **{"lr": 0.01, **options})
            with samebits.Run(folder / "run", model=module, optimizer=chosen, save=1) as training:
                for step, number in training.steps(range(8)):
                    chosen.zero_grad()
                    value = loss(number)
                    value.backward()
                    if clip:
                        torch.nn.utils.clip_grad_norm_(parameters, clip)
                    chosen.step()
            return [*(each.detach() for each in parameters)]

        for module in (generative, others, registry, sequences, vision):
            if hasattr(module, "trained"):
                module.trained = trained
        program()

    for name, program in registry.PROGRAMS.items():
        yield f"lab: {name}", lambda folder, program=program: run(folder, program)


def repaired():
    """The repaired scripts of `verify`'s tests."""
    for patch in sorted((ROOT / "tests/repaired").glob("*.patch")):

        def run(folder, patch=patch):
            script = folder / f"{patch.stem}.py"
            if not script.exists():
                shutil.copy(ROOT / "tests/broken" / script.name, script)
                subprocess.run(["patch", "-s", str(script), str(patch)], check=True, cwd=folder)
            sys.path.insert(0, str(folder))
            os.chdir(folder)
            sys.argv = [script.name]
            runpy.run_path(str(script), run_name="__main__")

        yield f"repaired: {patch.stem}", run


def examples():
    for script in ("digits", "language_model", "trainer"):

        def run(folder, script=script):
            os.chdir(folder)
            sys.argv = [f"{script}.py", *(["--run-dir", "run"] if script == "digits" else [])]
            runpy.run_path(str(ROOT / f"examples/{script}.py"), run_name="__main__")

        yield f"examples: {script}", run


PARTS = {one.__name__: one for one in (loops, carried, installed, lab, repaired, examples)}


def main():
    torch.set_num_threads(1)
    programs, alarms = 0, 0
    for part in sys.argv[1:] or PARTS:
        for name, program in PARTS[part]():
            found, text = outcomes(program)
            programs += 1
            alarms += found.count("ALARM")
            print(f"{name}: {', '.join(found)}", flush=True)
            if set(found) - {"ended", "not killed"}:
                print("   ", text[-1200:].replace("\n", "\n    "), flush=True)
    print(f"{programs} programs, {len(KILLS)} kills each: {alarms} false alarms")


if __name__ == "__main__":
    main()
