"""`make gpu`: runs the tests of tests/gpu on this machine's GPU, each file in processes of its own, and keeps a report.

A fault of the device, a crash or a hang costs one case: the rest of the file runs in another process. What has run is in
gpu-report/report.json and is not run again. Arguments are pytest's: files of tests/gpu, `-k`, `-x`. MINUTES is the limit
of a file. Exit status: 0 all that was asked for has passed; 1 not, or not all has run; 2 it cannot run here.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT, SUPPORT = HERE.parents[1], HERE.parent / "support"
sys.path.insert(0, str(SUPPORT))

import gpu_report

PARTS = ("random", "switch", "training", "compiled", "commits", "rounding", "arithmetic")
"""In the order of their value: a GPU is available for minutes."""
SWITCHING = ("test_switch.py", "test_compiled.py", "test_commits.py")
"""Files in which the switch is turned on and off in one process: cuBLAS reads its variable once."""
_SPARE_S = 20.0
"""A killed process is waited for this long: one that waits for the device ends by no signal."""
_START_S = 120.0
"""The limit for what is done before the first case: imports."""
_ENDED, _USAGE_ERROR = (0, 1, 5), 4
"""Exit statuses of pytest: all passed, some failed, no case was left; and wrong arguments."""


def run_parts(files, folder, arguments, limit_s, on_gpu=True):
    """Runs the cases of each file that the report has not, and returns the exit status."""
    whole = [_run_part(file, folder, arguments, limit_s, on_gpu) for file in files]
    cases = gpu_report.read(folder)["cases"]
    asked = {name: one for name, one in cases.items() if name.partition("::")[0] in {f.name for f in files}}
    failed = [name for name, one in asked.items() if one["state"] == "failed"]
    for name in failed:
        print(f"FAILED {name}: {asked[name]['wrong'][0]}")
    if not all(whole):
        print("Not all has run: the same command continues.")
    passed = sum(one["state"] == "passed" for one in asked.values())
    print(
        f"{passed} of {len(asked)} cases passed, {len(failed)} failed. The report: {folder / 'report.json'}"
    )
    return 0 if all(whole) and passed and not failed else 1


def _run_part(file, folder, arguments, limit_s, on_gpu):
    """Returns True if all cases of the file have run."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        code = _one_process(file, folder, arguments, until, on_gpu)
        if code in _ENDED:
            return True
        if code is None:
            return False
        if code == _USAGE_ERROR:
            sys.exit(2)
        if code != gpu_report.AGAIN and not gpu_report.note_died(folder, file.name, code):
            return False
    return False


def _one_process(file, folder, arguments, until, on_gpu):
    """Returns the exit status of a pytest process; None where it was ended because the time is over."""
    own = ["-m", "pytest", "-q", "-m", "gpu" if on_gpu else "", "-p", "no:cacheprovider", "-p", "no:randomly"]
    where = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--confcutdir", str(HERE)]
    inside = [word for word in arguments if "::" in word]  # tests by name
    chosen = [word for word in inside if file.name in word] or [str(file)]
    options = [word for word in arguments if word not in inside]
    command = [sys.executable, *own, *where, "--gpu-report", str(folder), *options, *chosen]
    environment = _environment()
    if file.name in SWITCHING:
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return _watch(process, folder, until)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_SPARE_S)


def _environment():
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _watch(process, folder, until):
    seen, moved = None, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        content = gpu_report.read(folder)
        running = content.get("running")
        if (now := (running, len(content["cases"]))) != seen:
            seen, moved = now, time.monotonic()
        if time.monotonic() > until:
            return None
        if time.monotonic() - moved > (running["limit_s"] if running else _START_S):
            return gpu_report.LIMIT
    return process.returncode


def has_gpu():
    """True if the machine shows an NVIDIA GPU, by its devices or its tool."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    if shutil.which("nvidia-smi") is None:
        return False
    return "GPU" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout


def chosen_python():
    """(Python, environment of the report) of the first Python whose torch sees the GPU; else (None, one line)."""
    pythons = [sys.executable, str(ROOT / ".venv/bin/python"), shutil.which("python") or ""]
    reasons = []
    for python in filter(os.path.exists, dict.fromkeys(pythons)):
        probe = [python, str(SUPPORT / "gpu_environment.py")]
        done = subprocess.run(probe, env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return python, json.loads(done.stdout.splitlines()[-1])
        if done.returncode == 4:
            reasons.append(f"{python} with {done.stdout.strip()}: install that")
        elif done.returncode != 3:
            reasons.append(f"{python} fails: {done.stderr.strip().splitlines()[-1]}")
    why = next(iter(reasons), "no Python here has a torch that sees the GPU")
    return None, f"{why}, or name another, make gpu PYTHON=..."


def main(arguments):
    if not has_gpu():
        sys.exit(_cannot("no NVIDIA GPU here. `make test` rehearses the tests of tests/gpu on the CPU."))
    python, environment = chosen_python()
    if python is None:
        sys.exit(_cannot(environment))
    if python != sys.executable:
        os.execv(python, [python, __file__, *arguments])
    folder = Path.cwd() / "gpu-report"
    gpu_report.begin(folder, environment)
    words = {word: HERE / Path(word.partition("::")[0]).name for word in arguments}
    files = [HERE / f"test_{part}.py" for part in PARTS]
    asked = [file for file in files if file in words.values()]
    rest = [word for word in arguments if words[word] not in asked or "::" in word]
    sys.exit(run_parts(asked or files, folder, rest, 60 * float(os.environ.get("MINUTES", "9"))))


def _cannot(why):
    print(f"make gpu: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main(sys.argv[1:])
