import json

import pytest
import torch

from samebits.determinism.table._overload_facts import version_numbers

QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
HEAD = """
import json, sys, torch, samebits
import torch.nn.functional as F
from samebits import _digest as digest
from samebits.errors import SamebitsError
samebits.set_random_seed(0)
def tell(value): print(json.dumps(value))
def bits(value): return digest.of_value(value)[-16:]
"""


@pytest.fixture
def told(python, tmp_path):
    """Runs a script, with a cache folder of its own for compiled code, and returns what it `tell`s."""

    def run(source, *args):
        env = {**QUIET, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        return json.loads(python(HEAD + source, *args, env=env, timeout=800).stdout.splitlines()[-1])

    return run


THREADS = """
table = torch.randn(50, 32)
data = {
    "odd": torch.randn(100_003), "wide": torch.randn(3, 40_000), "tall": torch.randn(20_000, 10),
    "grid": torch.randn(512, 96), "at": torch.randint(50, (30_000,)), "target": torch.randint(96, (512,)),
}
def step(d, weight, bias, table):
    odd, grid, at = d["odd"], d["grid"], d["at"]
    normed = F.layer_norm(grid, (96,), weight, bias)
    out = {
        "sum": (odd * 1.5).sum(), "norm": odd.norm(), "rows": d["wide"].exp().sum(1), "columns": (d["tall"] + 1).sum(0),
        "var": odd.var(), "logsumexp": odd.logsumexp(0), "softmax": odd.softmax(0), "argmax": odd.argmax(),
        "max": odd.max(), "any": (odd > 3).any(), "prod": (1 + odd * 1e-4).prod(), "cumsum": odd.cumsum(0),
        "half": d["wide"].bfloat16().sum(), "double": odd.double().sum(),
        "scatter": torch.zeros(50).scatter_add(0, at, odd[:30_000]),
        "put": torch.zeros(50).index_put((at,), odd[:30_000], accumulate=True),
        "pointwise": torch.exp2(odd) + torch.sinh(odd) + odd.atan() * F.softplus(odd),
        "head": torch.mm(d["tall"].t(), d["tall"].tanh()),
    }
    loss = F.cross_entropy(normed, d["target"]) + F.embedding(at, table).square().mean() + F.mse_loss(normed, grid)
    return out, loss

def one(compiled):
    parameters = [torch.linspace(0.5, 1.5, 96), torch.zeros(96), table.clone()]
    for p in parameters: p.requires_grad_()
    out, loss = compiled(data, *parameters)
    loss.backward()
    names = ("weight grad", "bias grad", "embedding grad")
    return {**out, "loss": loss.detach(), **{n: p.grad for n, p in zip(names, parameters)}}
"""

EVERY = (
    THREADS
    + """
samebits.enable_op_determinism(across="threads")
compiled, seen = torch.compile(step), {}
for threads in (1, 2, 3, 4, 8):
    torch.set_num_threads(threads)
    for again in range(2):
        for name, value in one(compiled).items(): seen.setdefault(name, set()).add(bits(value))
def few(odd, tall): return (odd * 1.5).sum(), odd.norm(), (tall + 1).sum(0), odd.var()
samebits.enable_op_determinism(across="runs")
compiled, varying = torch.compile(few), []
for threads in (1, 3):
    torch.set_num_threads(threads)
    varying.append([bits(value) for value in compiled(data["odd"], data["tall"])])
tell([{name: len(results) for name, results in seen.items()}, varying])
"""
)


@pytest.mark.slow
def test_compiled_code_has_the_same_bits_at_any_thread_count(told):
    """Compiled sums, norms, softmax, losses, scatter, index_put, gradients: one result at 1, 2, 3, 4 and 8 threads.

    Negative control: with `across="runs"`, compiled sums, norms and variances differ at 1 and 3 threads.
    """
    counts, (one, three) = told(EVERY)
    assert len(counts) > 20
    assert counts == dict.fromkeys(counts, 1)
    assert sum(a != b for a, b in zip(one, three, strict=True)) >= 3


LIFE = """
x = torch.randn(1_000_000)
def total(x): return (x * 1.5).sum()
torch.use_deterministic_algorithms(True)  # the only thing that Dynamo guards on is set already
torch.set_num_threads(2)
debug_mode = torch.set_deterministic_debug_mode  # kept by a user before the switch replaces it
compiled = torch.compile(total)
before = bits(compiled(x))
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx
held = compile_fx(make_fx(total)(x), [x])  # Dynamo does not know of it
held(x)
meta_path, cache_tag = list(sys.meta_path), torch.compiler.config.cache_key_tag  # setuptools, which Inductor imports, has changed it

from samebits.determinism._compile import graph_mode as mode
samebits.enable_op_determinism(across="threads")
under = bits(compiled(x))
torch._dynamo.reset()
fresh = bits(torch.compile(total)(x))

def refused(call):
    try: call()
    except SamebitsError as error: return type(error).__name__ + ': ' + str(error).splitlines()[0]
    finally: torch._dynamo.reset()
    return ""

import torch._inductor.config as config
def compile_with(**settings):
    with config.patch(settings): return torch.compile(total)(x)
def warned():
    debug_mode("warn")
    try: compile_fx(make_fx(total)(x), [x])
    finally: debug_mode("error")
messages = [refused(call) for call in (
    lambda: held(x),
    lambda: compile_with(cpp_wrapper=True),
    lambda: compile_with(freezing=True),
    lambda: compile_with(deterministic=False),
    warned,
)]
tuned = bits(torch.compile(total, mode="max-autotune")(x))
samebits.enable_op_determinism(False)
torch.set_num_threads(2)
off = bits(compiled(x))
mode._forget_compiled = lambda: None  # negative control: nothing is dropped
samebits.enable_op_determinism(across="threads")
messages.append(refused(lambda: compiled(x)))
samebits.enable_op_determinism(False)
restored = sys.meta_path == meta_path and torch.compiler.config.cache_key_tag == cache_tag
tell({"before": before, "under": under, "fresh": fresh, "tuned": tuned, "off": off, "messages": messages, "restored": restored})
"""


@pytest.mark.slow
def test_code_compiled_before_the_switch_is_compiled_again(told):
    """Compiled before, called after: the switch's bits. Off again: the old bits. What cannot be held is refused.

    Negative control: Dynamo's own guards do not see our mode; with old code not dropped, it is refused when called.
    """
    seen = told(LIFE)
    assert seen["before"] == seen["off"] != seen["under"]
    assert seen["under"] == seen["fresh"] == seen["tuned"]
    assert seen["restored"]
    words = (
        "UnimplementedError: code that Inductor compiled before enable_op_determinism",
        "UnimplementedError: Inductor's C++ wrapper",
        "UnimplementedError: Inductor's freezing",
        "ConflictError: torch.compile under op determinism with torch._inductor.config.deterministic = False",
        "ConflictError: torch.compile under op determinism, but torch's own flag",
        "UnimplementedError: code that Inductor compiled before enable_op_determinism",
    )
    for word, message in zip(words, seen["messages"], strict=True):
        assert message.startswith(word)


CACHE = """
import torch._dynamo.utils as utils
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.set_num_threads(2)
x = torch.randn(100_000, requires_grad=True)
def total(x): return (x * 1.5).sum()
def hits():
    utils.counters.clear()
    torch._dynamo.reset()
    torch.compile(total)(x).backward()
    return sum(utils.counters[part][name] for part, name in (
        ("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit")))
if sys.argv[1] == "plain":
    tell([hits(), hits()])
else:
    with samebits.enable_op_determinism(across="threads"): under = [hits(), hits()]
    plain = hits()
    from samebits._inspect.patching import Patches
    from samebits.determinism._compile import inductor
    Patches.force = lambda *args: None
    inductor._with_threads = lambda init, threads: init  # in torch 2.11 it sets keys apart, too
    with samebits.enable_op_determinism(across="threads"): untagged = hits()
    tell([*under, plain, untagged])
"""


@pytest.mark.slow
def test_code_cached_on_disk_without_the_switch_is_not_used_under_it(told):
    """The switch is part of the key of both caches on disk, in both directions. Negative control: without the tag it is used."""
    first, second = told(CACHE, "plain")
    assert first == 0 < second
    under, under_again, plain, untagged = told(CACHE, "switch")
    assert under == 0
    assert under_again > 0
    assert plain > 0
    assert untagged > 0


FEW = """
def few(odd, tall): return (odd * 1.5).sum(), odd.norm(), (tall + 1).sum(0)
torch.set_num_threads(int(sys.argv[1]))
odd, tall = torch.randn(100_003), torch.randn(20_000, 10)
if sys.argv[2] == "bare":  # as torch 2.11 makes its key
    from torch._inductor.codecache import FxGraphHashDetails as Details
    init = Details.__init__
    from samebits.determinism._compile import inductor
    inductor._with_threads = lambda init, threads: init
    def without(self, *args, **kwargs):
        init(self, *args, **kwargs)
        vars(self).pop("cpp_runtime_thread_count", None)
    Details.__init__ = without
samebits.enable_op_determinism()
tell([bits(value) for value in torch.compile(few)(odd, tall)])
"""


@pytest.mark.slow
def test_code_cached_on_disk_at_another_thread_count_is_not_used(told, tmp_path):
    """A process with 3 threads has the same bits behind one that left its code for 1 thread in the cache, and alone.

    Negative control: without the thread count in the key, as in torch 2.11, it takes the code of the other.
    """
    three = told(FEW, 3, "ours")
    (tmp_path / "cache").rename(tmp_path / "away")
    one = told(FEW, 1, "ours")
    assert told(FEW, 3, "ours") == three != one
    (tmp_path / "cache").rename(tmp_path / "away_too")
    assert told(FEW, 1, "bare") == told(FEW, 3, "bare") == one


SHAPES = """
sizes = (64, 37)
inputs = {n: torch.randn(n, 301) for n in sizes}
def normed(x): return F.layer_norm(x, (x.shape[-1],)), x.var(0)
def pass_over(order):
    torch._dynamo.reset()
    compiled = torch.compile(normed)
    seen = {n: bits(compiled(inputs[n])) for n in order}
    return [seen[n] for n in sizes]
off = [pass_over(sizes), pass_over(sizes[::-1])]
samebits.enable_op_determinism(across="threads")
tell([off, [pass_over(sizes), pass_over(sizes[::-1])]])
"""


@pytest.mark.slow
def test_bits_do_not_depend_on_the_shapes_seen_before(told):
    """A run that resumes sees its shapes in another order: under the switch compiled code has the same bits then.

    Negative control: without it a size becomes dynamic at its second value, and a shape's bits depend on the order
    (those of torch 2.11 do not, for this model).
    """
    (off_forward, off_backward), (forward, backward) = told(SHAPES)
    assert off_forward != off_backward or version_numbers(torch.__version__) < (2, 13)
    assert forward == backward
