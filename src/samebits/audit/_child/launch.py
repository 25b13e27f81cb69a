"""Executes a script as `python SCRIPT ARGS` would, with a recorder.

`python -m samebits.audit._child.launch SPEC.json SCRIPT [ARGS...]` is one process of `samebits verify`;
`execute` is the same in this process, for `samebits run`. It moves no generator, seed or thread count.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import os
import re
import signal
import sys
import types
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from samebits import _context as context
from samebits import audit
from samebits.audit._child.launch_spec import LaunchSpec, TraceSpec, read_spec
from samebits.determinism import enable_op_determinism
from samebits.determinism._guards.conflicting_settings import WeakerThanAskedError
from samebits.errors import SamebitsError
from samebits.random import set_random_seed

if TYPE_CHECKING:
    from samebits.audit._record.recorder import Recorder


EXIT_USAGE = 2
_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `SPEC.json SCRIPT [ARGS...]`; returns the exit code of the script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) < 2:
        print("usage: python -m samebits.audit._child.launch SPEC.json SCRIPT [ARGS...]", file=sys.stderr)
        return EXIT_USAGE
    try:
        spec = read_spec(arguments[0])
    except SamebitsError as error:
        print(f"samebits: {error}", file=sys.stderr)
        return EXIT_USAGE
    if spec.die_with_parent:
        die_with_parent()
    return execute(arguments[1], arguments[2:], spec)


def execute(script: str | os.PathLike[str], args: Sequence[str], spec: LaunchSpec) -> int:
    """Runs `script` as `__main__` and returns its exit code; prints uncaught exceptions as Python does.

    A script that is missing, a folder, or no Python is one line on stderr and exit code 2. `sys.argv`,
    `sys.path` and `__main__` stay the script's afterwards (its exit handlers may need them); everything else
    is undone.
    """
    script = os.fspath(script)
    try:
        code = compile_script(script)
        with ExitStack() as stack:
            recorder = _prepare(stack, script, spec)
            return _run(code, script, list(args), recorder)
    except (_UnusableScriptError, SamebitsError) as error:
        print(f"samebits: run: {error}", file=sys.stderr)
        return EXIT_USAGE


class _UnusableScriptError(Exception):
    """A script that cannot be started."""


def compile_script(script: str) -> types.CodeType:
    """Returns the script's code. Raises an error of one line for a file that is no Python program."""
    try:
        source = Path(script).read_bytes()
        return compile(source, os.path.abspath(script), "exec", dont_inherit=True)
    except OSError as error:
        text = (error.strerror or str(error)).lower()
        reason = "is a folder" if isinstance(error, IsADirectoryError) else text
        raise _UnusableScriptError(f"cannot run {script}: {reason}") from error
    except SyntaxError as error:
        at = f" (line {error.lineno})" if error.lineno else ""
        raise _UnusableScriptError(f"cannot run {script}: not a Python program: {error.msg}{at}") from error
    except ValueError as error:
        raise _UnusableScriptError(f"cannot run {script}: not a Python program: {error}") from error


def die_with_parent() -> None:
    """Asks for SIGKILL for this process when the thread that started it ends (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _prepare(stack: ExitStack, script: str, spec: LaunchSpec) -> Recorder | None:
    """Enters all context managers around the script; the stack undoes them."""
    before = context.process.overrides
    stack.callback(setattr, context.process, "overrides", before)
    root = spec.overrides.run_root
    folders = None if root is None else _moved_folders(str(root))
    context.process.overrides = replace(
        spec.overrides, raise_incomplete=root is None, any_environment=spec.trace is not None, folders=folders
    )
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)  # the environment alone gives no more than there are cores
    if spec.switch:
        stack.enter_context(enable_op_determinism(across=spec.across))
        stack.callback(setattr, context.process, "asked_op_determinism", None)
        context.process.asked_op_determinism = context.process.op_determinism
        if spec.seed is not None:
            set_random_seed(spec.seed)
    recorder = _record(stack, script, spec)
    if spec.trace is not None and recorder is not None:
        _trace(stack, spec.trace, recorder)
    if spec.overlaid:
        stack.enter_context(audit._child.variations.rename_folders_by_copy())
    kill = spec.kill
    if kill is not None and (not spec.by_rank or (kill.rank or 0) == int(os.environ.get("RANK", "0"))):
        killer = audit._child.variations.Killer(
            kill.at,
            kill.step,
            lambda at, step: _last_words(recorder, at, step),
            parent=spec.by_rank and kill.rank is None,
        )
        stack.enter_context(context.observed(killer))
        stack.enter_context(audit._record.torch_hooks.torch_hooks(killer))
    workers = spec.overrides.num_workers
    if recorder is not None or workers is not None:
        unread = audit._record.torch_hooks.LoaderWorkers([], [])
        note, own = (recorder.note, recorder.loaders) if recorder else (lambda _: None, unread)
        vary = audit._child.variations.set_loader_workers
        stack.enter_context(vary(workers, note, own, torchs=spec.torch_workers))
    if spec.slow:
        slow = audit._child.variations.SlowMachine()
        stack.enter_context(context.observed(slow))
        stack.enter_context(audit._record.torch_hooks.torch_hooks(slow))
    if spec.listing_seed is not None:
        stack.enter_context(audit._child.variations.set_listing_order(spec.listing_seed))
    return recorder


def _moved_folders(run_root: str) -> re.Pattern[str]:
    """Returns what matches the folders that are others in each process, and a temporary file's own name.

    So is the number that Lightning gives a file of which a killed process had written the first one.
    """
    shell = os.environ.get("PWD", "/")  # a program that starts another one in a folder may leave its own
    shell = shell if os.path.realpath(shell) == os.path.realpath(os.getcwd()) else "/"
    fixed = {run_root, os.path.realpath(run_root), os.getcwd(), shell} - {"/"}
    names = "|".join(map(re.escape, sorted(fixed, key=len, reverse=True)))
    temporary = rf"{re.escape(os.path.dirname(run_root))}/\d+/t(?:/[^/]+)?"  # of a killed process, too
    return re.compile(rf"(?:{names}|{temporary})(?![\w.-])|-v\d+(?=\.ckpt)")


def _record(stack: ExitStack, script: str, spec: LaunchSpec) -> Recorder | None:
    if spec.record_dir is None:
        return None
    files = audit._record.record_file
    file = files.RecordFile(files.folder_of_process(spec.record_dir) if spec.by_rank else spec.record_dir)
    stack.callback(file.close)
    recorder = audit._record.recorder.Recorder(
        file,
        level=spec.level,
        every=spec.every,
        stop_after_steps=spec.overrides.stop_after_steps,
        all_memory=spec.all_memory,
        digest_files=spec.digest_files,
    )
    allowed = (spec.record_dir, spec.overrides.run_root)
    stack.enter_context(
        audit._record.recorder.recording(
            recorder, script, level=spec.level, every=spec.every, seed=spec.seed, allowed=allowed
        )
    )
    return recorder


def _trace(stack: ExitStack, spec: TraceSpec, recorder: Recorder) -> None:
    rank = os.environ.get("RANK", "")
    tracer = audit._trace.tracer.Tracer(replace(spec, file=spec.file + rank))
    stack.callback(tracer.close)
    stack.enter_context(audit._record.torch_hooks.torch_hooks(tracer))
    recorder.before_step = tracer.before_step


def _run(code: types.CodeType, script: str, args: list[str], recorder: Recorder | None) -> int:
    module = _become_main(script, args)
    threads = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    status, failure = 0, None
    try:
        if recorder is not None:
            recorder.before_step("", -1)
        exec(code, module.__dict__)  # noqa: S102 (it is what this module is for)
    except SystemExit as leaving:
        status = _exit_code(leaving)
        failure = leaving if status else None
    except WeakerThanAskedError as error:
        failure, status = error, EXIT_USAGE
        print(f"samebits: run: {error}", file=sys.stderr)
    except BaseException as error:
        if recorder is None or not isinstance(error, audit._record.recorder.StopScript):
            failure = error
            status = 130 if isinstance(error, KeyboardInterrupt) else 1
            _print_exception(error, code.co_filename)
    if recorder is not None:
        if "RANK" in os.environ:
            # torchrun ends this rank when another has failed, which must wait for the record's last line
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name, value in threads.items():
            if os.environ.get(name) != value:
                recorder.note(f"sets {name} itself: too late here, torch was imported before; set it outside")
        recorder.finish(failure)
    return status


def _become_main(script: str, args: list[str]) -> types.ModuleType:
    """Returns a `__main__` as the interpreter makes it: pickling, spawned workers and dataclasses find it."""
    module = types.ModuleType("__main__")
    path = os.path.abspath(script)
    module.__dict__.update(
        __file__=path,
        __cached__=None,
        __builtins__=builtins,
        __annotations__={},
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = module
    sys.argv = [script, *args]
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    return module


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return int(leaving.code or 0)
    print(leaving.code, file=sys.stderr)
    return 1


def _print_exception(error: BaseException, script: str) -> None:
    """Prints a traceback that begins in the script, through the hook that the script may have set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _last_words(recorder: Recorder | None, at: str, step: int) -> None:
    if recorder is not None:
        recorder.file.write({"kind": "killed", "at": at, "step": step}, durable=True)


if __name__ == "__main__":
    sys.exit(main())
