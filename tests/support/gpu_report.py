"""The report of `make gpu`: one JSON file with the environment and, by name, the cases that have run so far.

It is written after each case, so that the next `make gpu` continues with the rest. Only Python's library is imported.
"""

import hashlib
import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "samebits.gpu/1"
AGAIN, LIMIT = 70, 71
"""How a part's process ended: another process must continue; a case ran past its limit."""
_KEY = ("gpu", "torch", "cuda", "sources")
"""A report is continued if these are as they were."""


def begin(folder, environment):
    """The report of the folder, to continue; a new one where there is none, or it is of another GPU, torch or source.

    A report that is not continued is kept beside the new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = read(folder)
    if content and any(content["environment"].get(name) != environment.get(name) for name in _KEY):
        kept = content["environment"]
        (folder / "report.json").rename(folder / f"report-{kept.get('date')}-{kept.get('sources')}.json")
        content = None
    content = content or {"schema": SCHEMA, "environment": environment, "cases": {}}
    content.pop("running", None)  # the process was killed: the case runs again
    write(folder, content)
    return content


def read(folder):
    """The content of the report; None where there is none, or another file of that name."""
    try:
        content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("schema") == SCHEMA else None


def write(folder, content):
    """Writes the whole file anew, in one step."""
    temporary = folder / ".report.json.new"
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, folder / "report.json")


def note_running(folder, case, limit_s):
    """Writes that a case has begun."""
    write(folder, {**read(folder), "running": {"case": case, "limit_s": limit_s}})


def note_ended(folder, case, outcome):
    """Writes the outcome of a case."""
    content = read(folder)
    content.pop("running", None)
    content["cases"][case] = outcome
    write(folder, content)


def note_died(folder, part, code):
    """Writes that a part's process died in its running case, which has failed.

    Returns False where it died before the first case: another process would die, too.
    """
    running = read(folder).get("running")
    why = f"the process ended with {code}" if code != LIMIT else "took longer than its limit"
    case = running["case"] if running else f"{part}::(start)"
    note_ended(folder, case, {"state": "failed", "wrong": [why], "seconds": 0.0})
    return running is not None


def sources(*names):
    """A digest of the Python, TOML and text files below these folders and files of the repository."""
    hashed = hashlib.sha256()
    for name in names:
        path = (ROOT / name).resolve(strict=True)
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in {".py", ".toml", ".txt", ".csv"}:
                hashed.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return hashed.hexdigest()[:16]


def formulations():
    """A digest of the code of the CUDA formulations, and of the kernels of the CPU that they use."""
    package = "src/samebits/determinism"
    shared = ("out_argument", "indexed_writes")
    files = (ROOT / package / "_cuda_decompositions").glob("*.py")
    return sources(*sorted(files), *(f"{package}/_kernels/{name}.py" for name in shared))


COVERS, RATIO = "covers", "ratio to the refused kernel"
"""Figures of a formulation: the overloads that its sample covers, and our time over that of torch's kernel."""
EQUAL, VARYING = "overloads with equal bits", "overloads of what varied"
"""Figures of the battery: full names, apart by blanks."""
