"""Whose code it is: one table of places, and what follows from it for state, for lines and for warnings."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import traceback
import types
import warnings
from pathlib import Path

import numpy
import pytest
import torch

import samebits
from samebits._inspect import user_code

PURELIB = sysconfig.get_path("purelib")
STDLIB = sysconfig.get_path("stdlib")
TORCH = os.path.dirname(torch.__file__)
SAMEBITS = os.path.dirname(samebits.__file__)

FILES = {
    "/home/me/project/train.py": "user",
    "/home/me/editable/src/mylib/model.py": "user",
    "/home/me/site-packages/project/model.py": "user",  # a folder of that name, where nothing is installed
    f"{os.path.dirname(sys.prefix)}/train.py": "user",  # a virtual environment inside of the project
    f"{sys.prefix}/src/mylib/model.py": "user",  # the project inside of the environment, as of `pip install -e git+`
    "<string>": "user",
    "<stdin>": "user",
    "<ipython-input-1-ab12>": "user",
    "/tmp/ipykernel_12/345.py": "user",
    f"{SAMEBITS}_of_mine/train.py": "user",
    os.path.abspath(__file__): "user",  # samebits' own tests
    f"{SAMEBITS}/data/batch.py": "samebits",
    f"{TORCH}/nn/functional.py": "framework",
    numpy.__file__: "framework",
    "<eval_with_key>.3": "framework",
    f"{PURELIB}/rich/console.py": "installed",
    f"{TORCH}vision/ops.py": "installed",
    f"{STDLIB}/functools.py": "standard",
    "<frozen os>": "standard",
    "<frozen importlib._bootstrap>": "standard",
}


@pytest.mark.parametrize(("file", "owner"), FILES.items(), ids=lambda value: str(value)[-40:])
def test_each_file_has_one_owner(file, owner):
    """A file is the user's, samebits', of torch and NumPy, installed, or the standard library's."""
    assert user_code.owner_of_file(file) == owner
    assert user_code.is_library(file) == (owner not in ("user", "samebits"))


def frame_of(file, name):
    """A frame of a function in `file`, in a module called `name`."""
    scope = {"__name__": name}
    exec(compile("import sys\ndef frame(): return sys._getframe()", file, "exec"), scope)
    return scope["frame"]()


@pytest.mark.parametrize(
    ("file", "name", "owner"),
    [
        ("/tmp/torchinductor_me/ab/cab.py", "torch._inductor.codecache.cab", "framework"),
        ("<string>", "torch.fx.graph_module", "framework"),
        ("<string>", "rich.console", "installed"),
        ("<string>", "__main__", "user"),
        ("<string>", "not_imported_anywhere", "user"),
        ("/home/me/torch_of_mine/model.py", "torch_of_mine.model", "user"),
        # `code` is also a module of the standard library
        ("/home/me/project/code/model.py", "code.model", "user"),
    ],
)
def test_generated_code_belongs_to_the_module_that_it_runs_in(file, name, owner):
    """A frame's file says whose it is, unless the code was generated: then its module does."""
    import rich.console  # noqa: F401

    assert user_code.owner_of_frame(frame_of(file, name)) == owner


def test_a_link_in_site_packages_to_the_users_folder_is_the_users(tmp_path):
    """An editable install by a link, and one by a path file: where the code really is decides."""
    installed = tmp_path / "lib" / "python3.11" / "site-packages"
    installed.mkdir(parents=True)
    (tmp_path / "project" / "mylib").mkdir(parents=True)
    (installed / "mylib").symlink_to(tmp_path / "project" / "mylib")
    (installed / "other").mkdir()
    program = (
        "import sys; from samebits._inspect.user_code import owner_of_file as owner\n"
        "print(owner(sys.argv[1] + '/mylib/a.py'), owner(sys.argv[1] + '/other/a.py'))"
    )
    path = os.pathsep.join([str(installed), *sys.path])
    out = subprocess.run(
        [sys.executable, "-c", program, str(installed)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == ["user", "installed"]


class Mine:
    """The test's own."""


def test_a_link_from_one_site_packages_into_another_is_installed(tmp_path, monkeypatch):
    """A folder of links to installed packages, which Python searches, holds installed packages; one that it does not search holds yours."""
    real, links = tmp_path / "real" / "site-packages", tmp_path / "links" / "site-packages"
    (real / "library").mkdir(parents=True)
    links.mkdir(parents=True)
    (links / "library").symlink_to(real / "library")
    module = real / "library" / "module.py"
    module.touch()
    name = str(links / "library" / "module.py")
    user_code.owner_of_file.cache_clear()
    assert user_code.owner_of_file(name) == "user"
    monkeypatch.syspath_prepend(links)
    user_code.owner_of_file.cache_clear()
    assert user_code.owner_of_file(name) == "installed"


def test_the_users_types_are_those_of_the_users_files_and_of_main():
    """Classes of the user's modules and of `__main__` count as the user's; of libraries and of samebits they do not."""
    callback = importlib.import_module("samebits.callbacks").Callback
    assert user_code.is_user_type(Mine)
    assert user_code.is_user_type(type("InMain", (), {"__module__": "__main__"}))
    assert user_code.is_user_type(callback), "it holds the user's objects"
    for kind in (int, torch.nn.Linear, numpy.ndarray, Path, samebits.Run, samebits.data.DataLoader):
        assert not user_code.is_user_type(kind)


def test_the_users_package_may_be_called_like_a_library(tmp_path, monkeypatch):
    """A replica capture follows functions of the user's package `torch_of_mine`, and none of torch itself."""
    from samebits.replica._capture.closures import is_followed

    (tmp_path / "torch_of_mine.py").write_text("def step(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_followed(importlib.import_module("torch_of_mine").step)
    assert not is_followed(torch.nn.functional.relu)
    assert not is_followed(samebits.random.uniform)


def test_a_warning_names_the_users_line_however_deep_it_comes_from():
    """`warn` names the line that called samebits, through samebits, torch, contextlib and generated code."""
    scope = {"__name__": "samebits.somewhere", "user_code": user_code}
    exec("def deep(n): return deep(n - 1) if n else user_code.warn('text', RuntimeWarning)", scope)
    for depth in (0, 1, 7):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            scope["deep"](depth)
            line = sys._getframe().f_lineno - 1
        assert [(one.filename, one.lineno, one.category) for one in seen] == [
            (__file__, line, RuntimeWarning)
        ]


def test_a_warning_obeys_the_filters_of_the_users_module():
    """As with `warnings.warn`: once per line by default, and a filter for the user's module holds."""
    scope = {"__name__": "a_module_of_mine", "user_code": user_code}
    exec(compile("def twice():\n  for _ in range(2): user_code.warn('text')", "/home/me/a.py", "exec"), scope)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        scope["twice"]()
        warnings.filterwarnings("ignore", module="a_module_of_mine")
        scope["twice"]()
    assert len(seen) == 1


def test_a_traceback_is_cut_to_the_lines_that_are_not_machinery():
    """Of torch, samebits and the standard library nothing is shown; of an installed package and of a cell it is."""
    names = [
        f"{TORCH}/a.py",
        f"{SAMEBITS}/b.py",
        f"{STDLIB}/c.py",
        f"{PURELIB}/rich/d.py",
        "<cell>",
        __file__,
    ]
    frames = [traceback.FrameSummary(name, 1, "f", line="x = 1") for name in names]
    assert [frame.filename for frame in user_code.user_frames(frames)] == names[3:]
    without_text = traceback.FrameSummary("<string>", 1, "<lambda>")
    assert user_code.user_frames([without_text, frames[-1]]) == [frames[-1]]


def test_the_innermost_line_of_a_graphs_node_is_read():
    """`file:line: text` of the last entry; a node without a trace has none."""
    trace = (
        '  File "/a/b.py", line 3, in f\n    x = g(y)\n  File "/a/c.py", line 14, in g\n    return y + 1\n'
    )
    trace = '  File "<string>", line 1, in <lambda>\n' + trace
    node = types.SimpleNamespace(meta={"stack_trace": trace})
    assert user_code.line_of_node(node) == "c.py:14: return y + 1"
    assert user_code.text_of_node(node) == "return y + 1"
    assert user_code.line_of_node(types.SimpleNamespace(meta={})) == "no source line"
    assert user_code.text_of_node(types.SimpleNamespace(meta={})) == ""


def test_a_module_whose_path_is_no_list_has_an_owner(monkeypatch):
    """Modules that answer every attribute, and lazy ones, are neither an error nor asked for what they would import."""

    class Odd(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(name)

    odd = Odd("odd")
    odd.__path__ = 3
    monkeypatch.setitem(sys.modules, "odd", odd)
    assert user_code.owner_of_module("odd") is None
    odd.__file__ = __file__
    assert user_code.owner_of_module("odd") == "user"
