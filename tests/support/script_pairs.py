"""Scripts that differ by a patch: those of tests/broken and their repairs, the examples with and without samebits."""

import os
import shutil
import subprocess
from pathlib import Path

TESTS = Path(__file__).parents[1]
BROKEN = sorted((TESTS / "broken").glob("*.py"))


def patch_of(script):
    """The repair of a broken script: one sentence, and the lines that change."""
    return TESTS / "repaired" / f"{script.stem}.patch"


def repaired(script, folder):
    """The repaired twin of a broken script, made in `folder` under its name."""
    return patched(script, patch_of(script), folder, "--unidiff-zero")


def patched(script, patch, folder, *options):
    """The script after a patch, made in `folder` under its name."""
    twin = Path(shutil.copy(script, folder))
    command = ["git", "apply", *options, str(patch)]
    # Below a repository, git would apply the patch to that one's files, or to none.
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)},
        check=True,
    )
    return twin
