"""tools/install_torch: which build of torch `make` installs. A script in the place of Python notes what it is asked for."""

import os
import subprocess

import pytest

PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in {missing}) exit 1 ;; esac
"""


@pytest.fixture
def install(root, tmp_path):
    def call(*words, missing="nothing", gpu=False):
        log, python, smi = tmp_path / "log", tmp_path / "python", tmp_path / "bin" / "nvidia-smi"
        log.write_text("")
        python.write_text(PYTHON.format(log=log, missing=missing))
        smi.parent.mkdir(exist_ok=True)
        smi.write_text("#!/bin/sh\necho 'GPU 0: one'\n" if gpu else "#!/bin/sh\nexit 9\n")
        python.chmod(0o755)
        smi.chmod(0o755)
        done = subprocess.run(
            [root / "tools" / "install_torch", python, *words],
            capture_output=True, text=True, env={**os.environ, "PATH": f"{smi.parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done, log.read_text().splitlines()

    return call


def version(root):
    return next(line for line in (root / "constraints.txt").read_text().split() if line.startswith("torch=="))


def test_without_a_gpu_the_cpu_build_is_installed(install, root):
    """From the index that has it under its own version, and one line says how to get the other build."""
    done, asked = install()
    assert done.returncode == 0 and asked[-1].endswith(f"{version(root)}+cpu") and len(asked) == 1
    assert "the cpu build" in done.stdout and "TORCH_BUILD=cuda" in done.stdout


def test_where_the_index_has_no_cpu_build_uv_takes_it_from_pytorch(install, root):
    """PyPI has no version with +cpu: uv is installed, and its backend `cpu` is asked for the pinned version."""
    done, asked = install(missing="*+cpu*")
    assert done.returncode == 0 and len(asked) == 3 and asked[1].endswith(" uv")
    assert "-m uv pip install" in asked[2] and asked[2].endswith(f"--torch-backend cpu {version(root)}")


def test_with_a_gpu_or_where_asked_for_the_build_is_pypis(install, root):
    """Negative control: a GPU, or TORCH_BUILD=cuda, changes what is installed; TORCH_BUILD=cpu wins over the GPU."""
    for words, gpu, ending in (
        ((), True, version(root)),
        (("cuda",), False, version(root)),
        (("cpu",), True, "+cpu"),
    ):
        done, asked = install(*words, gpu=gpu)
        assert done.returncode == 0 and asked[-1].endswith(ending), asked


def test_another_word_is_refused_before_anything_is_installed(install):
    """Exit status 2 with the choices."""
    done, asked = install("rocm")
    assert (done.returncode, asked) == (2, []) and "choose cpu or cuda" in done.stderr
