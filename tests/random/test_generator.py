"""`samebits.random.Generator`: its draws, its state, and the global one."""

import copy
import inspect
import io
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import samebits
from samebits import random
from samebits._context import Position, process
from samebits.errors import InvalidArgumentError, UnimplementedError, UnseededError
from samebits.random import Generator, fold_in, key

NO_DRAWS = {"fold_in", "split", "permute_index"}  # keys of keys, and a function of its index


def public_draws():
    functions = {name: getattr(random, name) for name in dir(random) if name[0] != "_"}
    functions = {name: f for name, f in functions.items() if inspect.isfunction(f) and name not in NO_DRAWS}
    return {
        name: f for name, f in functions.items() if next(iter(inspect.signature(f).parameters), "") == "key"
    }


class Noisy(nn.Module):
    def __init__(self, seed=1):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.noise = Generator.from_seed(seed)

    def forward(self, x):
        return self.linear(x) + self.noise.normal(3)


@pytest.mark.parametrize("name", sorted(public_draws()))
def test_every_draw_has_its_method(name):
    """Each public draw is a method of the same parameters, order, kinds, defaults and result; `self` stands for the key."""
    function = inspect.signature(public_draws()[name])
    method = inspect.signature(getattr(Generator, name))
    assert list(method.parameters.values())[1:] == list(function.parameters.values())[1:]
    assert method.return_annotation == function.return_annotation


def test_no_draw_is_overlooked():
    """Negative control: the list of draws is not empty, and keeps what makes keys out."""
    assert {"bits", "uniform", "normal"} <= set(public_draws())
    assert not NO_DRAWS & set(public_draws())


@given(seed=st.integers(0, 2**64 - 1), before=st.integers(0, 3))
def test_draw_n_is_that_of_the_key_with_n_folded_in(seed, before):
    """Draw n has the bits of the stateless function at fold_in(key(seed), n), whatever was drawn before it."""
    generator = Generator.from_seed(seed)
    for _ in range(before):
        generator.uniform(2)
    assert torch.equal(generator.key, key(seed)) and generator.draws == before
    expected = random.normal(fold_in(key(seed), before), 5, mean=1.0)
    assert torch.equal(generator.normal(5, mean=1.0), expected)
    assert generator.draws == before + 1


def test_a_draw_that_raises_takes_no_number():
    """A bad argument leaves the generator where it was; the next draw is the one that it would have been."""
    generator, other = Generator.from_seed(1), Generator.from_seed(1)
    with pytest.raises(InvalidArgumentError, match="high"):
        generator.uniform(3, low=2.0, high=1.0)
    with pytest.raises(TypeError):
        generator.uniform(3, nothing_like_it=1)
    with pytest.raises(InvalidArgumentError, match="split"):
        generator.split(0)
    assert generator.draws == 0
    assert torch.equal(generator.uniform(3), other.uniform(3))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, None, "1", torch.tensor(1)])
def test_seeds_are_checked(seed):
    """Seeds are ints with 0 <= seed < 2**64; another one raises and changes nothing."""
    with pytest.raises(InvalidArgumentError, match="0 <= seed < 2\\*\\*64"):
        Generator.from_seed(seed)
    generator = Generator.from_seed(2**64 - 1)
    generator.uniform(1)
    with pytest.raises(InvalidArgumentError, match=r"reset_from_seed"):
        generator.reset_from_seed(seed)
    assert generator.draws == 1 and generator.key.tolist() == [2**64 - 1, 0]


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.zeros(3, dtype=torch.uint64), random.split(key(1))])
def test_keys_are_checked(wrong):
    """A generator has one key: uint64 of shape (2,)."""
    with pytest.raises(InvalidArgumentError, match="key"):
        Generator.from_key(wrong)
    with pytest.raises(InvalidArgumentError, match="key"):
        Generator.from_seed(1).reset_from_key(wrong)


def test_reset_starts_again():
    """After reset_from_seed and reset_from_key the draws are those of a new generator."""
    generator = Generator.from_seed(1)
    first = generator.uniform(4)
    generator.reset_from_seed(1)
    assert torch.equal(generator.uniform(4), first)
    generator.reset_from_key(fold_in(key(3), "own"))
    assert torch.equal(generator.uniform(4), Generator.from_key(fold_in(key(3), "own")).uniform(4))


def test_the_key_given_may_be_reused():
    """A generator copies its key: writing to the tensor it was made of does not move the stream."""
    own = key(1)
    generator = Generator.from_key(own)
    own.fill_(7)
    assert torch.equal(generator.uniform(4), Generator.from_seed(1).uniform(4))


def test_split_gives_independent_generators():
    """Children of all splits, their parent's draws and grandchildren have different keys and numbers; the parent moves on."""
    parent = Generator.from_seed(1)
    families = [parent.split(3), parent.split(3)]
    assert parent.draws == 2 and all(len(family) == 3 for family in families)
    children = [child for family in families for child in family]
    children += children[0].split(2)
    seen = [tuple(child.key.tolist()) for child in children]
    seen += [tuple(fold_in(parent.key, n).tolist()) for n in range(100)]
    assert len(set(seen)) == len(seen)
    drawn = torch.stack([g.normal(2000) for g in [parent, *children]])
    off_diagonal = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert off_diagonal.abs().max() < 5 / 2000**0.5


def test_split_depends_on_the_draws_before_it():
    """Equal generators split equally; one draw earlier or later gives other children."""
    one, two, late = (Generator.from_seed(1) for _ in range(3))
    late.uniform(1)
    keys = [[child.key.tolist() for child in g.split(2)] for g in (one, two, late)]
    assert keys[0] == keys[1] and keys[0][0] != keys[2][0]


def test_from_non_deterministic_state_differs_and_is_refused_under_the_switch():
    """Two generators of the operating system's entropy differ; under op determinism none is made."""
    assert not torch.equal(
        Generator.from_non_deterministic_state().key, Generator.from_non_deterministic_state().key
    )
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(), pytest.raises(UnseededError, match="from_seed"):
        Generator.from_non_deterministic_state()


def test_the_state_is_saved_with_the_module_that_holds_it(tmp_path):
    """state_dict has the key and the count; through safetensors and back, a strict load goes on with the same draws."""
    module, x = Noisy(), torch.ones(2, 3)
    module(x), module(x)
    state = module.state_dict()
    assert state["noise.key"].tolist() == [1, 0] and state["noise.key"].dtype is torch.uint64
    assert state["noise.draws"].shape == () and state["noise.draws"].dtype is torch.int64
    safetensors.torch.save_file(state, tmp_path / "state.safetensors")
    expected = [module(x), module(x)]
    assert state["noise.draws"] == 2  # what was saved does not move with the generator
    other = Noisy(seed=9)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "state.safetensors"), strict=True)
    assert all(torch.equal(other(x), y) for y in expected)


def test_a_state_that_does_not_fit_is_refused():
    """Missing, unexpected and malformed entries are errors of load_state_dict that name them; nothing is loaded."""
    module = Noisy()
    good = module.state_dict()
    module.noise.uniform(1)
    for name, value, match in [
        ("noise.key", torch.zeros(2), "noise: a key is a uint64"),
        ("noise.draws", torch.tensor(-1), "noise: draws must be"),
        ("noise.draws", torch.tensor(1.0), "noise: draws must be"),
        ("noise.other", torch.tensor(1), "Unexpected.*noise.other"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            module.load_state_dict({**good, name: value})
    with pytest.raises(RuntimeError, match="Missing.*noise.draws"):
        module.load_state_dict({name: value for name, value in good.items() if name != "noise.draws"})
    assert Generator.from_seed(1).load_state_dict(Generator.from_seed(2).state_dict())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_go_on_with_the_same_numbers(duplicate):
    """A deep copy and a pickled copy draw what the original draws next, and do not move it."""
    generator = Generator.from_seed(1)
    generator.uniform(2)
    twin = duplicate(generator)
    assert torch.equal(twin.uniform(4), generator.uniform(4)) and twin.draws == generator.draws == 2


def test_torch_save_of_a_state_needs_no_pickled_class():
    """The state is plain tensors: torch.load(weights_only=True) reads it."""
    file = io.BytesIO()
    torch.save(Noisy().state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["noise.key"].tolist() == [1, 0]


def test_dropout_repeats_its_own_mask_in_backward():
    """The mask of a dropout draw is the key's, in backward too, where the generator has moved on."""
    generator, x = Generator.from_seed(1), torch.ones(100, requires_grad=True)
    dropped = generator.dropout(x, 0.5)
    generator.uniform(1)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach()) and 20 < int((dropped == 0).sum()) < 80
    assert torch.equal(dropped, random.dropout(fold_in(key(1), 0), x, 0.5))


def test_casts_and_moves_leave_the_stream():
    """half(), to(dtype), the meta device and to_empty change neither key nor count."""
    module = Noisy()
    module.noise.uniform(1)
    module.half().to(torch.float64)
    assert module.noise.key.dtype is torch.uint64
    with torch.device("meta"):
        lazy = Noisy()
    assert lazy.noise.device.type == "meta"
    for noise in (module.noise, lazy.to_empty(device="cpu").noise):
        noise.reset_from_seed(1)
    assert torch.equal(lazy.noise.uniform(4), module.noise.uniform(4)) and lazy.noise.device.type == "cpu"


def test_a_generator_is_no_parameter_and_no_buffer():
    """DistributedDataParallel broadcasts buffers, so that a rank's key would become that of rank 0: there are none."""
    assert not list(Generator.from_seed(1).parameters()) and not list(Generator.from_seed(1).buffers())


def test_draws_inside_backward_are_refused():
    """Activation checkpointing would repeat a forward with other numbers; it is refused, and named. Outside it works."""
    module, x = Noisy(), torch.ones(2, 3)

    def forward(x):
        return module.linear(x) * module.noise.normal(3)

    forward(x).sum().backward()
    with pytest.raises(UnimplementedError, match="checkpointing"):
        checkpoint(forward, x, use_reentrant=False).sum().backward()


@pytest.mark.parametrize("record", [torch.jit.trace, lambda module, x: make_fx(module)(*x)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_recorded_draws_are_refused(record):
    """A recorded graph would repeat one number forever: jit.trace and make_fx are refused, and the count stays."""
    module = Noisy()
    with pytest.raises(UnimplementedError, match="forever"):
        record(module, (torch.ones(2, 3),))
    assert module.noise.draws == 0


def test_compiled_code_draws_the_numbers_of_eager_code():
    """A compiled module moves its generator at each call, as the plain one does."""
    plain, compiled, x = Noisy(), Noisy(), torch.ones(2, 3)
    compiled.load_state_dict(plain.state_dict())
    call = torch.compile(compiled, backend="eager")
    assert all(torch.equal(call(x), plain(x)) for _ in range(12))
    assert compiled.noise.draws == plain.noise.draws == 12


def test_the_global_generator_is_that_of_the_seed():
    """set_random_seed decides the global generator and starts it again; another seed gives another one."""

    def drawn(seed):
        samebits.set_random_seed(seed)
        return random.get_global_generator().uniform(4), random.get_global_generator().uniform(4)

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], Generator.from_seed(1).uniform(4))


def test_set_global_generator_lasts_until_the_next_seed():
    """The generator that was set is the one returned, until set_random_seed; anything else is refused."""
    own = Generator.from_seed(5)
    random.set_global_generator(own)
    assert random.get_global_generator() is own
    with pytest.raises(InvalidArgumentError, match="from_seed"):
        random.set_global_generator(torch.Generator())
    assert random.get_global_generator() is own
    samebits.set_random_seed(1)
    assert random.get_global_generator() is not own


def test_an_unseeded_global_generator_is_refused_under_the_switch(python):
    """Without seed: entropy, another number in each process; under the switch UnseededError, unless one was set."""
    done = python(
        "import samebits, torch\n"
        "from samebits import random\n"
        "print(random.get_global_generator().key.tolist()); samebits._context.process.generator = None\n"
        "samebits.enable_op_determinism()\n"
        "try: random.get_global_generator()\n"
        "except samebits.errors.UnseededError as error: print('set_random_seed' in str(error))\n"
        "random.set_global_generator(random.Generator.from_seed(1)); print(random.get_global_generator().draws)\n"
    )
    first, refused, zero = done.stdout.split("\n")[:3]
    assert (refused, zero) == ("True", "0") and first != "[1, 0]"


def test_the_global_generator_follows_the_steps_of_a_run():
    """In a step it draws by the step, whatever was drawn before; outside it goes on where it was."""
    samebits.set_random_seed(1)
    process.run_key = (3, 4)
    held = random.get_global_generator()
    outside = [held.uniform(2)]

    def at(step):
        process.position = None if step is None else Position("train", 0, step, step)
        return random.get_global_generator().uniform(2)

    first = [at(5), at(5), at(6), at(None)]
    assert held.draws == 2
    samebits.set_random_seed(1)
    again = random.get_global_generator()
    assert torch.equal(again.uniform(2), outside[0])
    assert torch.equal(at(6), first[2])  # a process that was resumed there
    assert torch.equal(at(None), first[3])
    assert torch.equal(at(5), first[0]) and torch.equal(copy.deepcopy(again).uniform(2), first[1])
