"""Training loops as people write them: `ORDINARY` ones keep all that they carry, `FORGETFUL` ones do not.

Each takes a `Run` factory and trains a few epochs of four steps.
"""

import copy
import functools
import itertools
import logging
import math
import random
import time
from collections import defaultdict, deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import samebits

ORDINARY, FORGETFUL = {}, {}


def ordinary(loop):
    ORDINARY[loop.__name__] = loop
    return loop


def forgetful(*paths):
    def note(loop):
        FORGETFUL[loop.__name__] = (loop, paths)
        return loop

    return note


class Data(torch.utils.data.Dataset):
    def __init__(self):
        fixed = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(16, 4, generator=fixed), torch.arange(16) % 3

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def parts(data=None):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, samebits.data.DataLoader(data or Data(), batch_size=4, shuffle=True)


def update(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# Ordinary loops.


def fetched(steps, model, optimizer, weight=None):
    """One step, by a function that asks for its batch itself."""
    before = model[0].weight.detach().clone() if weight is None else weight
    step, (x, y) = next(steps)
    loss = update(model, optimizer, x, y)
    return loss.item(), float((model[0].weight.detach() - before).norm())


@ordinary
def next_in_a_function(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps = run.steps(loader, epochs=3)
        while True:
            try:
                loss, _ = fetched(steps, model, optimizer)
            except StopIteration:
                break
    return loss


@ordinary
def next_behind_what_it_needs(make):
    model, optimizer, loader = parts()
    run = make(model=model, optimizer=optimizer)
    with run:
        run.state.setdefault("n", 0)
        steps = run.steps(loader, epochs=3)
        while True:
            scale = 1 / (1 + run.state.n)
            step, (x, y) = next(steps, (None, (None, None)))
            if step is None:
                break
            update(model, optimizer, x * scale, y)
            run.state.n += 1


@ordinary
def next_without_a_loop(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps = run.steps(loader, epochs=1)
        fetched(steps, model, optimizer)
        fetched(steps, model, optimizer)
        fetched(steps, model, optimizer)
        for step, (x, y) in steps:
            update(model, optimizer, x, y)


@ordinary
def next_in_the_condition(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps = run.steps(loader, epochs=3)
        while (item := next(steps, None)) is not None:
            update(model, optimizer, *item[1])


@forgetful("count")
def a_count_for_the_function_that_fetches(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps, count = run.steps(loader, epochs=3), 0.0
        while True:
            try:
                fetched(steps, model, optimizer, weight=count)
            except StopIteration:
                break
            count += 0.5


@forgetful("best")
def a_best_around_the_function_that_fetches(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps, best = run.steps(loader, epochs=3), 9.0
        for _ in range(12):
            loss, _ = fetched(steps, model, optimizer)
            best = best / 2 + loss
        return best


@forgetful("loss")
def a_loss_that_scales_the_next_fetch(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps, loss = run.steps(loader, epochs=3), 1.0
        while True:
            scale = 1 + loss
            item = next(steps, None)
            if item is None:
                break
            loss = update(model, optimizer, item[1][0] * scale, item[1][1]).item()


@forgetful("hidden")
def a_state_behind_a_condition(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        steps, hidden = run.steps(loader, epochs=3), 0.0
        while (item := next(steps, None)) is not None:
            hidden = hidden / 2 + update(model, optimizer, item[1][0] + hidden, item[1][1]).item()


@ordinary
def recomputed_locals(make):
    model, optimizer, loader = parts()
    names, log = ["a"], logging.getLogger("ordinary")
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            total = 0.0
            for _ in range(2):
                total += update(model, optimizer, x, y).item()
            mean, kept = total / 2, {"loss": total}
            log.debug("%s %s %s", names, mean, kept)
            if step.ends_epoch:
                accuracy = (model(x).argmax(1) == y).float().mean()
    return accuracy


@ordinary
def wrapped_iterators(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for i, (step, (x, y)) in enumerate(run.steps(loader, epochs=2)):
            loss = update(model, optimizer, x, y)
            run.log(loss=loss, i=i, n=step.number)


@ordinary
def progress_bar(make):
    from rich.progress import Progress

    model, optimizer, loader = parts()
    with Progress(disable=True) as bar, make(model=model, optimizer=optimizer) as run:
        task = bar.add_task("train", total=8)
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)
            bar.advance(task)


@ordinary
def average_given(make):
    model, optimizer, loader = parts()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    with make(model=model, optimizer=optimizer, ema=ema, swa=swa) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
            ema.update_parameters(model)
            if step.ends_epoch:
                swa.step()
                ema.eval()


@ordinary
def two_networks(make):
    generator, g_optimizer, loader = parts()
    critic = nn.Linear(3, 1)
    c_optimizer = torch.optim.RMSprop(critic.parameters())
    given = {"g": generator, "c": critic, "g_optimizer": g_optimizer, "c_optimizer": c_optimizer}
    with make(**given) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            c_loss = critic(generator(x).detach()).mean() - critic(F.one_hot(y, 3).float()).mean()
            c_optimizer.zero_grad()
            c_loss.backward()
            c_optimizer.step()
            g_loss = -critic(generator(x)).mean()
            g_optimizer.zero_grad()
            g_loss.backward()
            g_optimizer.step()
            errors = {"c": c_loss.item(), "g": g_loss.item()}
            run.log(loss=errors["g"])


class Memory:
    def __init__(self, size):
        self.items = deque(maxlen=size)
        self.position = 0

    def push(self, *item):
        self.items.append(item)
        self.position += 1

    def sample(self, count):
        return random.choices(self.items, k=count)

    def state_dict(self):
        return {"items": list(self.items), "position": self.position}

    def load_state_dict(self, state):
        self.items.extend(state["items"])
        self.position = state["position"]


@ordinary
def replay_memory(make):
    model, optimizer, loader = parts()
    target = copy.deepcopy(model)
    memory = Memory(20)
    with make(model=model, optimizer=optimizer, target=target, memory=memory) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            epsilon = max(0.1, 1 - step.number / 10)
            for sample, label in zip(x, y, strict=True):
                memory.push(sample, label, random.random() < epsilon)
            batch = memory.sample(4)
            update(model, optimizer, torch.stack([b[0] for b in batch]), torch.stack([b[1] for b in batch]))
            if step.number % 3 == 0:
                target.load_state_dict(model.state_dict())


@ordinary
def hidden_in_state(make):
    model = nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        hidden = run.state.setdefault("hidden", torch.zeros(4, 4))
        for step, (x, _y) in run.steps(loader, epochs=2):
            hidden = model(x, hidden)
            loss = hidden.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hidden = hidden.detach()
            if step.ends_epoch:
                hidden = torch.zeros(4, 4)
            run.state.hidden = hidden


@ordinary
def copies_of_the_state(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        best = run.state.get("best", math.inf)
        history = run.state.setdefault("history", [])
        counts = run.state.setdefault("counts", {})
        for _step, (x, y) in run.steps(loader, epochs=2):
            loss = update(model, optimizer, x, y).item()
            history.append(loss)
            counts["steps"] = counts.get("steps", 0) + 1
            if loss < best:
                best = loss
                run.state.best = best


@ordinary
def scaler_given(make):
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
    with make(model=model, optimizer=optimizer, scaler=scaler, scheduler=scheduler) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            lr = scheduler.get_last_lr()[0]
            run.log(loss=loss, lr=lr)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.add_(momentum.lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 0.01)


@ordinary
def own_optimizer(make):
    model, _, loader = parts()
    optimizer = Lion(model.parameters())
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)


class Mean:
    """A metric like torchmetrics': updated per step, reset per epoch."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def compute(self):
        return self.total / self.count

    def state_dict(self):
        return {name: value for name, value in self.__dict__.items()}

    def load_state_dict(self, state):
        self.__dict__.update(state)


@ordinary
def metrics_given(make):
    model, optimizer, loader = parts()
    loss_mean = Mean()
    with make(model=model, optimizer=optimizer, loss_mean=loss_mean) as run:
        for step, (x, y) in run.steps(loader, epochs=2):
            loss_mean.update(update(model, optimizer, x, y).item())
            if step.ends_epoch:
                validation = Mean()
                for _ in range(2):
                    validation.update(F.cross_entropy(model(x), y).item())
                run.log(mean=loss_mean.compute(), validation=validation.compute())
                loss_mean.reset()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.weights = self.penalty = self.mask = None
        self.parts = {}

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(4, 4).tril()
        self.weights = (self.q(x).softmax(-1) * self.mask).detach()
        self.penalty = self.q(x).square().mean()
        self.parts["penalty"] = self.penalty.item()
        self.outputs = []
        self.outputs.append(float(x.sum()))
        return self.head(x * self.weights)


@ordinary
def what_forward_leaves_behind(make):
    _, _, loader = parts()
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.beta = 0.0
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            model.beta = min(1.0, step.number / 10)
            loss = F.cross_entropy(model(x), y) + model.beta * model.penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, weight=model.weights.mean(), **model.parts)


@ordinary
def hooks_that_collect(make):
    model, optimizer, loader = parts()
    features = {}

    def keep(name):
        def hook(module, inputs, output):
            features[name] = output.detach()

        return hook

    model[0].register_forward_hook(keep("first"))
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            loss = update(model, optimizer, x, y)
            run.log(loss=loss, size=features["first"].norm())


@ordinary
def clocks(make):
    model, optimizer, loader = parts()
    started = last = time.perf_counter()
    spent = 0.0
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            waited = time.perf_counter() - last
            loss = update(model, optimizer, x, y)
            spent += time.perf_counter() - last
            last = time.perf_counter()
            run.log(loss=loss, waited=waited, spent=spent, whole=last - started)


@functools.cache
def positions(length):
    return torch.arange(length).float()


class Memo(Data):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.x[index] / self.x[index].norm()
        return self.cache[index] + 0.1 * torch.randn(4), self.y[index]


@ordinary
def caches(make):
    model, optimizer, loader = parts(Memo())
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x + positions(4), y)


class Ranked(torch.utils.data.Sampler):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(16, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self):
        return 16


@ordinary
def sampler_that_is_told(make):
    model, optimizer, _ = parts()
    loader = samebits.data.DataLoader(Data(), batch_size=4, sampler=Ranked())
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)


@ordinary
def torch_loader_with_a_generator(make):
    model, optimizer, _ = parts()
    own = torch.Generator().manual_seed(5)
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True, generator=own)
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)


class NumpyDraws:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.python = random.Random(1)

    def state_dict(self):
        return {"numpy": self.rng.bit_generator.state, "python": self.python.getstate()[1]}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["numpy"]
        self.python.setstate((3, tuple(state["python"]), None))


@ordinary
def generators_kept(make):
    model, optimizer, loader = parts()
    draws, noise = NumpyDraws(), torch.Generator().manual_seed(2)
    own = samebits.random.Generator.from_seed(4)
    other = np.random.default_rng(9)
    with make(model=model, optimizer=optimizer, draws=draws, own=own) as run:
        run.state.setdefault("noise", noise.get_state())
        noise.set_state(run.state.noise)
        for _step, (x, y) in run.steps(loader, epochs=2):
            x = x * float(draws.rng.random()) + draws.python.random() + float(other.random())
            x = x + torch.randn(x.shape, generator=noise) + own.normal(*x.shape)
            update(model, optimizer, x, y)
            run.state.noise = noise.get_state()
            run.state.other = copy.deepcopy(other.bit_generator.state)


class Lazy:
    """An object that minds being looked at."""

    def __init__(self):
        self.looked = []

    @property
    def expensive(self):
        raise AssertionError("a property was called")

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")

    def __len__(self):
        raise AssertionError("asked for its length")

    def __repr__(self):
        raise AssertionError("asked for its repr")

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


@ordinary
def objects_that_mind(make):
    model, optimizer, loader = parts()
    lazy, endless = Lazy(), itertools.cycle([1, 2])
    held = {"lazy": lazy, "all": [lazy]}
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)
            assert held["lazy"] is lazy
            assert held["all"][0] is lazy
            assert endless is not None


def numbered(run, loader):
    """A generator of the user's around the steps."""
    for step, batch in run.steps(loader, epochs=2):
        yield step.number, batch


@ordinary
def loop_in_a_generator(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for _number, (x, y) in numbered(run, loader):
            update(model, optimizer, x, y)


# Forgetful loops.


@forgetful("best", "bad", "losses", "total", "hidden", "window")
def locals_that_live_on(make):
    model, optimizer, loader = parts()
    best, bad, total, losses = math.inf, 0, 0.0, []
    hidden, window = torch.zeros(4), deque(maxlen=3)
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=3):
            x = x + (sum(losses) + sum(window) + total + bad) / 1000 + min(best, 0) * 1e-9
            loss = update(model, optimizer, x + 0 * hidden, y).item()
            hidden = 0.5 * hidden + x.mean(0)
            losses.append(loss)
            window.append(loss)
            total += loss
            bad += 1
            best = min(best, -total)


@forgetful("best")
def best_at_epoch_ends(make):
    model, optimizer, loader = parts()
    best = None
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x * (best or 1), y)
            if step.ends_epoch:
                best = -step.epoch if best is None else min(best, -step.epoch)


@forgetful("rng", "noise", "python", "own", "bits")
def generators_of_every_kind(make):
    model, optimizer, loader = parts()
    rng, noise, python = np.random.default_rng(0), torch.Generator().manual_seed(1), random.Random(2)
    own, bits = samebits.random.Generator.from_seed(3), np.random.PCG64(5)
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            x = x * float(rng.random()) + torch.randn(x.shape, generator=noise) * python.random()
            update(model, optimizer, x + own.normal(*x.shape) + bits.random_raw() % 2, y)


class Counting(Mean):
    """Its state_dict leaves the count out."""

    def state_dict(self):
        return {"total": self.total}


@forgetful("metric.count")
def half_a_state_dict(make):
    model, optimizer, loader = parts()
    metric = Counting()
    with make(model=model, optimizer=optimizer, metric=metric) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            metric.update(update(model, optimizer, x, y).item())


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.mean = torch.zeros(4)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.body(x - self.mean)


@forgetful("model.0.mean")
def tensor_attribute_of_a_module(make):
    _, _, loader = parts()
    model = nn.Sequential(Normed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)


@forgetful("model.beta")
def annealed_after_the_epoch(make):
    _, _, loader = parts()
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.beta = 0.0
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            loss = F.cross_entropy(model(x), y) + model.beta * model.penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step.ends_epoch:
                model.beta = 0.5 * step.epoch + 0.1


@forgetful("ema", "optimizer", "scaler", "scheduler")
def objects_that_run_was_not_given(make):
    model, optimizer, loader = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ema = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    with make(model=model) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            loss = scaler.scale(F.cross_entropy(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            with torch.no_grad():
                for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)


calls = 0
seen = defaultdict(int)


def counted(x, y):
    global calls
    calls += 1
    seen[int(y[0])] += 1
    return x / (calls + len(seen))


@forgetful("calls", "seen")
def globals_that_functions_count_in(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, counted(x, y), y)


@forgetful("scaled")
def a_closure_that_counts(make):
    model, optimizer, loader = parts()

    def counter():
        number, kept = 0, []

        def scale(x):
            nonlocal number
            number += 1
            kept.append(number)
            return x / number

        return scale

    scaled = counter()
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, scaled(x), y)


class Hardening(Data):
    def __init__(self):
        super().__init__()
        self.noise = 0.1
        self.served = 0

    def __getitem__(self, index):
        self.served += 1
        return self.x[index] + self.noise, self.y[index]


@forgetful("loader.dataset.noise", "loader.dataset.served")
def a_dataset_that_changes(make):
    model, optimizer, loader = parts(Hardening())
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)
            loader.dataset.noise *= 1.5


class DrawnMemo(Memo):
    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.x[index] + torch.randn(4)
        return self.cache[index], self.y[index]


@forgetful("loader.dataset.cache")
def a_cache_of_what_was_drawn(make):
    model, optimizer, _ = parts()
    loader = torch.utils.data.DataLoader(DrawnMemo(), batch_size=2, shuffle=True)  # samebits' refuses it
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            update(model, optimizer, x, y)


@forgetful("pool", "numbers")
def iterators_that_go_on(make):
    model, optimizer, loader = parts()
    pool = iter(samebits.data.DataLoader(Data(), batch_size=2, shuffle=True))
    numbers = itertools.count()
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            extra, _ = next(pool)
            update(model, optimizer, x + extra.mean() + next(numbers), y)
