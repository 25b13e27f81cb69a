"""What the switch puts before functions of Python, NumPy and torch answers as they do."""

import json

import pytest

PROGRAM = """
import copy, inspect, json, pickle, types
import torch.utils.data.distributed, torch.distributed.rpc, torch.fx.experimental.proxy_tensor
import samebits
from samebits._inspect import patching

NAMES = ("__name__", "__qualname__", "__module__", "__doc__", "__text_signature__", "__objclass__")
KINDS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, type)

def answer(ask):
    try:
        return str(ask())
    except Exception as error:
        return type(error).__name__

def facts(function, original):
    return {
        **{name: answer(lambda: getattr(function, name)) for name in NAMES},
        "kinds": [isinstance(function, kind) for kind in KINDS],
        "binds": hasattr(type(function), "__get__") and not inspect.ismethod(original),
        "owner": answer(lambda: function.__self__ == original.__self__),
        "class of its owner": answer(lambda: function.__self__.__class__),
        "signature": answer(lambda: inspect.signature(function)),
        "pickle": answer(lambda: pickle.loads(pickle.dumps(function)).__name__),
        "deep copy": answer(lambda: copy.deepcopy(function).__name__),
        "copy": answer(lambda: copy.copy(function) == function),
        "equal": function == original or isinstance(original, types.FunctionType),
        "hash": hash(function) == hash(original) or isinstance(original, types.FunctionType),
    }

samebits.enable_op_determinism()
places = [(one.owner, one.name) for one in patching._patches if callable(getattr(one.owner, one.name))]
samebits.enable_op_determinism(False)
originals = [getattr(*place) for place in places]
before = [facts(original, original) for original in originals]
samebits.enable_op_determinism()
report = {}
for place, original, then in zip(places, originals, before):
    guard = getattr(*place)
    now = facts(WRAP(guard), original)
    label = f"{getattr(place[0], '__name__', type(place[0]).__name__)}.{place[1]}"
    report[label] = {key: [then[key], now[key]] for key in then if then[key] != now[key]}
    assert guard is not original, label
print(json.dumps(report))
"""
WRAPPED = "(lambda guard: lambda *args, **kwargs: guard(*args, **kwargs))"
CLASSES = {"numpy.random.RandomState": {"__module__"}, "numpy.random.Philox": {"__module__"}}
"""A pickle of the class asks `numpy.random` for it, where the guard is."""
UNASKED = {"OpaqueBaseMeta.__call__", "numpy.random.mtrand._MT19937"}
"""A method of torch's class of classes, and a private class that NumPy uses: no program asks for these."""


@pytest.mark.first_case_quick
@pytest.mark.parametrize("wrap", ["", WRAPPED])
def test_every_guard_answers_as_the_function_does(wrap, python):
    """Name, documentation, signature, owner, kind, copies and pickles are the function's own, for each of 100 and more.

    Negative control: a plain function around a guard differs each time.
    """
    report = json.loads(
        python("import warnings; warnings.simplefilter('ignore')" + PROGRAM.replace("WRAP", wrap)).stdout
    )
    assert len(report) > 100
    if wrap:
        assert all(report.values())
        return
    differing = {name: set(found) for name, found in report.items() if found and name not in UNASKED}
    assert differing == CLASSES


MONAI = "import numpy, samebits\n{first}\nprint(type(numpy.random.random.__self__.randint(9)).__name__)"
"""`create_test_image_2d` of MONAI takes the global generator from the function's owner."""


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("first", "ends"),
    [
        ("samebits.set_random_seed(1); samebits.enable_op_determinism()", "int"),
        ("samebits.enable_op_determinism(); samebits.set_random_seed(1)", "int"),
        ("samebits.enable_op_determinism()", "UnseededError"),
    ],
)
def test_the_generator_behind_a_function_is_guarded_too(first, ends, python):
    """`numpy.random.random.__self__` draws once there is a seed; without one (control) its draw raises."""
    done = python(MONAI.format(first=first), code=None)
    assert ends in (done.stdout or done.stderr).splitlines()[-1], done.stderr


def test_a_seed_removes_the_guards(python):
    """After a seed NumPy's and Python's own functions are in place, before anything is drawn; by `set_state`, too."""
    lines = python(
        "import numpy, random, samebits\n"
        "functions = lambda: [numpy.random.rand, numpy.random.mtrand._rand, random.random]\n"
        "own = functions()\n"
        "samebits.enable_op_determinism()\n"
        "print([a is b for a, b in zip(own, functions())])\n"
        "numpy.random.set_state(numpy.random.RandomState(3).get_state()); random.seed(3)\n"
        "print([a is b for a, b in zip(own, functions())])\n"
    ).stdout.splitlines()
    assert lines == ["[False, False, False]", "[True, True, True]"]
