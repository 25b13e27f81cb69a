"""Programs that forget what they carry, as people write them: each is stopped by an error, whose lines the robot pastes."""

import carried_state
import installed_state

HEAD = """
import collections, copy, os, sys, torch, samebits
from torch import nn
samebits.set_random_seed(1)
x = torch.randn(96, 4)
y = (x[:, 0] > 0).long()
data = torch.utils.data.TensorDataset(x, y)
loader = samebits.data.DataLoader(data, batch_size=4, shuffle=True)
"""
TAIL = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
"""
STEP = """
def train_step(a, b, scale=1.0):
    loss = nn.functional.cross_entropy(model(a), b) * scale
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss
"""
METER = """
class AverageMeter:
    def __init__(self): self.reset()
    def reset(self): self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
"""
RUN = 'with samebits.Run("runs/a", model=model, opt=opt, save=2) as run:\n'
LIBRARY = (
    installed_state.LIBRARY
    + METER
    + """
class Augmentation(torch.nn.Module):  # of kornia's shape: it keeps what its last call drew
    def __init__(self): super().__init__(); self._params, self._calls = {}, 0
    def forward(self, x):
        self._calls += 1
        if self._calls % 2 == 1: self._params = {"factor": 1 + torch.rand(()) / 9}
        return x * self._params["factor"]
class Memory:
    def __init__(self, size): self.tensors, self.memory_index, self.filled = {"obs": torch.zeros(size, 4)}, 0, False
    def add(self, row):
        self.tensors["obs"][self.memory_index] = row
        self.memory_index = (self.memory_index + 1) % len(self.tensors["obs"])
        self.filled |= self.memory_index == 0
class Scaler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        with torch.no_grad(): self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean
class Agent:  # of skrl's shape
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), 0.1)
        self.memory, self._scaler, self._rollout, self._value, self.writer = Memory(8), Scaler(), 0, None, open(os.devnull, "w")
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
    def learn(self, a, b):
        self._rollout += 1
        self.memory.add(a[0])
        self._value = self._scaler(a).mean().detach()
        out = self.model(self.memory.tensors["obs"].mean(0) + a) * (1 + self._rollout / 99 + self._value)
        self._loss = torch.nn.functional.cross_entropy(out, b)
        self.optimizer.zero_grad(); self._loss.backward(); self.optimizer.step(); self.scheduler.step()
class Pool:
    def __init__(self): self._made = 0
class Engine:
    def __init__(self): self._pool, self._lock_file, self._compiled_cache = Pool(), open(os.devnull, "w"), {}
class Storage:  # of the shape of optuna's, over SQLAlchemy
    def __init__(self, path):
        import sqlite3
        self._engine, self._connection = Engine(), sqlite3.connect(path)
        self._connection.execute("create table if not exists trials (step integer primary key, value real)")
class Study:
    def __init__(self, path): self._storage, self._open = Storage(path), []
    def tell(self, step, value):
        storage = self._storage
        storage._engine._pool._made += 1
        storage._engine._compiled_cache[len(storage._engine._compiled_cache)] = storage._engine._pool._made
        storage._connection.execute("insert or replace into trials values (?, ?)", (step, value))
        storage._connection.commit()
        return len(storage._engine._compiled_cache)
"""
)
LIB = (
    'import numpy as np\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))\n'
    "import counterlib as lib\n"
)

OWN = {
    "two values that each epoch makes anew": HEAD
    + TAIL
    + STEP
    + RUN
    + """    for epoch in run.epochs(3):
        hidden = (torch.zeros(2), torch.zeros(3))
        cost = torch.zeros(2)
        for step, (a, b) in epoch.steps(loader):
            hidden = tuple(h + a.mean() for h in hidden)
            cost = cost + hidden[0].mean()
            train_step(a, b, 1 + float(cost.sum()) / 9)
""",
    "a teacher that is None at first": HEAD
    + TAIL
    + "teacher = None\n"
    + RUN
    + """    for epoch in run.epochs(3):
        for step, (a, b) in epoch.steps(loader):
            loss = nn.functional.cross_entropy(model(a), b)
            if teacher is not None:
                loss = loss + (model(a) - teacher(a).detach()).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
        teacher = copy.deepcopy(model).eval()
""",
    "MoCo: a queue beside a module": HEAD
    + TAIL
    + """
class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 8)
        self.k = copy.deepcopy(self.q)
    def push(self):
        with torch.no_grad():
            for mine, theirs in zip(self.k.parameters(), self.q.parameters()):
                mine.lerp_(theirs, 0.1)
moco = MoCo()
opt = torch.optim.SGD(moco.q.parameters(), 0.1)
queue = nn.functional.normalize(torch.randn(16, 8), dim=1)
pointer = 0
"""
    + 'with samebits.Run("runs/a", q=moco.q, opt=opt, save=2) as run:\n'
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        query, key = moco.q(a), moco.k(a)
        logits = torch.cat([(query * key.detach()).sum(1, keepdim=True), query @ queue.T], 1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue[pointer : pointer + 4] = key.detach()
        pointer = (pointer + 4) % 16
        moco.push()
""",
    "FedAvg: clients with loaders": HEAD
    + TAIL
    + """
class Client:
    def __init__(self, number):
        self.loader = samebits.data.DataLoader(torch.utils.data.Subset(data, range(number * 24, number * 24 + 24)), batch_size=8)
        self.model = nn.Linear(4, 2)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.rounds, self.drift = 0, torch.zeros(2, 4)
    def train(self, weights):
        self.model.load_state_dict(weights)
        for a, b in self.loader:
            loss = nn.functional.cross_entropy(self.model(a), b) + (self.model.weight * self.drift).sum() * 0.01
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.rounds += 1
        self.drift += self.model.weight.detach() - weights["weight"]
        return self.model.state_dict()
clients = [Client(number) for number in range(4)]
server = nn.Linear(4, 2)
"""
    + 'with samebits.Run("runs/a", server=server, save=2) as run:\n'
    + """
    for step, number in run.steps(range(12), epochs=1):
        states = [client.train(server.state_dict()) for client in clients]
        server.load_state_dict({key: sum(state[key] for state in states) / len(states) for key in states[0]})
""",
    "minGPT: a trainer's method": HEAD
    + TAIL
    + """
class Trainer:
    def __init__(self, model, data):
        self.model, self.data, self.iter_num, self.callbacks = model, data, 0, []
    def train(self):
        model = self.model
        self.optimizer = torch.optim.AdamW(model.parameters())
        loader = samebits.data.DataLoader(self.data, batch_size=8, shuffle=True)
        with samebits.Run("runs/a", model=model, optimizer=self.optimizer, save=3) as run:
            for step, (a, b) in run.steps(loader, epochs=2):
                self.loss = nn.functional.cross_entropy(model(a), b)
                self.optimizer.zero_grad()
                self.loss.backward()
                self.optimizer.step()
                for callback in self.callbacks:
                    callback(self)
                self.iter_num += 1
trainer = Trainer(model, data)
def noise(t):
    if t.iter_num % 5 == 0:
        with torch.no_grad():
            t.model[0].weight += 0.01
trainer.callbacks.append(noise)
trainer.train()
""",
    "a meter for each epoch decides": HEAD
    + TAIL
    + STEP
    + METER
    + "sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.3)\n"
    + 'with samebits.Run("runs/a", model=model, opt=opt, sched=sched, save=3) as run:\n'
    + """
    for epoch in run.epochs(4):
        losses = AverageMeter()
        for step, (a, b) in epoch.steps(loader):
            loss = train_step(a, b)
            losses.update(loss.item(), len(a))
        sched.step(losses.avg)
""",
    "timm's meter for each epoch": HEAD
    + LIB
    + TAIL
    + STEP
    + "sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.3)\n"
    + 'with samebits.Run("runs/a", model=model, opt=opt, sched=sched, save=3) as run:\n'
    + """
    for epoch in run.epochs(4):
        losses = lib.AverageMeter()
        for step, (a, b) in epoch.steps(loader):
            loss = train_step(a, b)
            losses.update(loss.item(), len(a))
        sched.step(losses.avg)
""",
    "a meter of a function for each epoch": HEAD
    + TAIL
    + STEP
    + METER
    + """
def train_one_epoch(epoch):
    losses = AverageMeter()
    for step, (a, b) in epoch.steps(loader):
        loss = train_step(a, b)
        losses.update(loss.item(), len(a))
    return losses.avg
def main():
    best = 9.0
    with samebits.Run("runs/a", model=model, opt=opt, save=3) as run:
        for epoch in run.epochs(4):
            average = train_one_epoch(epoch)
            if average < best - 0.02:
                best = average
            else:
                opt.param_groups[0]["lr"] *= 0.5
main()
""",
    "sums of a function for each epoch": HEAD
    + TAIL
    + STEP
    + """
def train_one_epoch(epoch):
    total, n = 0.0, 0
    for step, (a, b) in epoch.steps(loader):
        total += train_step(a, b).item() * len(a)
        n += len(a)
    return total / n
with samebits.Run("runs/a", model=model, opt=opt, save=3) as run:
    for epoch in run.epochs(4):
        opt.param_groups[0]["lr"] = 0.1 * train_one_epoch(epoch)
""",
    "the best of a function for each loop": HEAD
    + TAIL
    + STEP
    + """
def train(name):
    best = 9.0
    for step, (a, b) in run.steps(loader, epochs=2, name=name):
        best = min(best, train_step(a, b, 1 + best / 9).item())
with samebits.Run("runs/a", model=model, opt=opt, save=3) as run:
    train("first")
    train("second")
""",
    "a meter made anew at each epoch of run.steps": HEAD
    + TAIL
    + STEP
    + METER
    + RUN
    + """
    losses = AverageMeter()
    for step, (a, b) in run.steps(loader, epochs=3):
        if step.batch_index == 0:
            losses = AverageMeter()
        loss = train_step(a, b, 1 + losses.avg / 9)
        losses.update(loss.item(), len(a))
""",
    "a scheduler that the loop replaces": HEAD
    + TAIL
    + STEP
    + """
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.3, total_steps=60)
with samebits.Run("runs/a", model=model, opt=opt, schedule=schedule, save=3) as run:
    for step, (a, b) in run.steps(loader, epochs=3):
        train_step(a, b)
        if step.number == 20:
            schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
        schedule.step()
""",
    "a loader of some epochs": HEAD
    + TAIL
    + STEP
    + RUN
    + """
    for epoch in run.epochs(6):
        if epoch % 2 == 0:
            with torch.no_grad():
                hard = (model(x).softmax(1).max(1).values < 0.9).nonzero().flatten().tolist()
            part = torch.utils.data.Subset(data, hard)
            loader = samebits.data.DataLoader(part, batch_size=4, shuffle=True)
        for step, (a, b) in epoch.steps(loader):
            train_step(a, b)
""",
    "an int of the model, only printed": HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.dropped = nn.Linear(4, 2), 0
    def forward(self, x):
        out = self.l(x)
        if float(self.l.bias.detach().abs().sum()) > 0.2:
            self.dropped += 1
        return out
model = Net()
opt = torch.optim.SGD(model.parameters(), 0.1)
"""
    + STEP
    + RUN
    + """
    for epoch in run.epochs(6):
        for step, (a, b) in epoch.steps(loader):
            loss = train_step(a, b)
        print(epoch, loss.item(), model.dropped)
""",
    "an int and a tensor of the user's model": HEAD
    + """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = 0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.calls, self.mean, self.cell = nn.Linear(4, 2), 0, torch.zeros(4), nn.Sequential(Cell())
    def forward(self, x):
        self.calls += 1
        self.cell[0].seen += len(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.l(x - self.mean) * (1 + self.calls / 99 + self.cell[0].seen / 999)
model = Net()
opt = torch.optim.SGD(model.parameters(), 0.1)
"""
    + STEP
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b)
""",
    "a tensor that the first forward makes": HEAD
    + """
class Norm(nn.Module):
    def forward(self, x):
        old = getattr(self, "mean", None)
        self.mean = x.mean(0) if old is None else 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean
model = nn.Sequential(Norm(), nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
"""
    + STEP
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b)
""",
    "kornia: augmentations in a Sequential": HEAD
    + LIB
    + TAIL
    + STEP
    + """
augment = nn.Sequential(lib.Augmentation(), lib.Augmentation(), nn.Sequential(lib.Augmentation()), lib.Augmentation(), lib.Augmentation())
"""
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(augment(a), b)
""",
    "kornia: the augmentations are given": HEAD
    + LIB
    + TAIL
    + STEP
    + """
augment = nn.Sequential(lib.Augmentation(), lib.Augmentation(), nn.Sequential(lib.Augmentation()), lib.Augmentation(), lib.Augmentation())
with samebits.Run("runs/a", model=model, opt=opt, aug=augment, save=2) as run:
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(augment(a), b)
""",
    "skrl: an agent of a package": HEAD
    + LIB
    + TAIL
    + """
agent = lib.Agent(model)
with samebits.Run("runs/a", model=model, save=2) as run:
    for step, (a, b) in run.steps(loader, epochs=1):
        agent.learn(a, b)
""",
    "optuna: a study in a database": HEAD
    + LIB
    + TAIL
    + STEP
    + "study = lib.Study('trials.db')\n"
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b, 1 + study.tell(step.number, 0.1) / 99)
""",
    "best weights in a local": HEAD
    + TAIL
    + STEP
    + RUN
    + """
    best, best_state = 9.0, copy.deepcopy(model.state_dict())
    for epoch in run.epochs(5):
        for step, (a, b) in epoch.steps(loader):
            train_step(a, b)
        loss = abs(epoch - 2) + 1.0
        if loss < best:
            best, best_state = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
""",
    "a namedtuple replay": HEAD
    + TAIL
    + STEP
    + """
import random
Transition = collections.namedtuple("Transition", ("state", "target"))
class ReplayMemory:
    def __init__(self, capacity): self.memory = collections.deque([], maxlen=capacity)
    def push(self, *args): self.memory.append(Transition(*args))
    def sample(self, n): return random.sample(self.memory, n)
memory = ReplayMemory(30)
"""
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        memory.push(a, b)
        batch = Transition(*zip(*memory.sample(1)))
        train_step(batch.state[0], batch.target[0])
""",
    "sums of an epoch": HEAD
    + TAIL
    + STEP
    + RUN
    + """
    count = 0
    for epoch in run.epochs(3):
        total = 0.0
        for step, (a, b) in epoch.steps(loader):
            count += 1
            total += train_step(a, b, scale=1 + count / 99).item()
        total = total / len(loader)
        opt.param_groups[0]["lr"] = 0.1 * min(1, total)
        print(f"{epoch}: {total:.3f} {count=}")
""",
    "six values of a function": HEAD
    + TAIL
    + STEP
    + """
from samebits import Run
def main(epochs=2):
    average, best, bad, history, seen, scale, last, ready = 0.0, 9.0, 0, [], set(), 1.0, None, False
    with Run("runs/a", model=model, opt=opt, save=2) as r:
        for step, (a, b) in r.steps(loader, epochs=epochs):
            loss = train_step(a, b, scale=scale).item()
            average = 0.9 * average + 0.1 * loss
            best, bad = (loss, 0) if loss < best else (best, bad + 1)
            history.append(loss)
            seen.add(int(b[0]) + step.number % 7)
            if last is not None and ready:
                scale = 1 + (loss - last) / 9 + bad / 99 + len(seen) / 99 + sum(history[-3:]) / 99 + average / 9
            last, ready = loss, True
    return best
main()
""",
    "a counter of another module": HEAD
    + """
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "helper.py"), "w") as file:
    file.write("k = 0\\nseen = []\\ndef h():\\n    global k\\n    k += 1\\n    seen.append(k)\\n    return k + len(seen)\\n")
import helper
"""
    + TAIL
    + STEP
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b, 1 + helper.h() / 99)
""",
    "an attribute that the loop makes": HEAD
    + TAIL
    + STEP
    + """
class Box: pass
box = Box()
"""
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        if not hasattr(box, "first"):
            box.first = a.mean()
        train_step(a, b, 1 + box.first)
""",
    "a controller with an optimizer and a handle": HEAD
    + TAIL
    + STEP
    + """
class Controller:
    def __init__(self):
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log_alpha], 0.01)
        self.file, self.count, self.loss = open(os.devnull, "w"), 0, None
    def update(self, value):
        self.loss = (self.log_alpha * (value - 0.5)).sum()
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.count += 1
        return self.log_alpha.exp().item() + self.count / 99
controller = Controller()
"""
    + RUN
    + """
    scale = 1.0
    for step, (a, b) in run.steps(loader, epochs=1):
        scale = controller.update(train_step(a, b, scale).item())
""",
    "counters in an object's list": HEAD
    + TAIL
    + STEP
    + """
class Arm:
    def __init__(self): self.pulls, self.file = 0, open(os.devnull, "w")
class Bandit:
    def __init__(self): self.arms = [Arm() for _ in range(3)]
    def pull(self, k):
        self.arms[k].pulls += 1
        return self.arms[k].pulls
bandit = Bandit()
"""
    + RUN
    + """
    for step, (a, b) in run.steps(loader, epochs=1):
        train_step(a, b, 1 + bandit.pull(step.number % 3) / 99)
""",
}

KINDS = {
    "table": ("defaultdict(lambda: 0.5)", "table[n % 3] += 1", "sum(table.values())"),
    "nested": (
        "defaultdict(lambda: defaultdict(lambda: [0]))",
        "nested[n % 3][n % 2][0] += 1",
        "nested[1][1][0]",
    ),
    "queues": ("defaultdict(deque)", "queues[n % 3].append(n)", "sum(queues[1])"),
    "seen": ("defaultdict(set)", "seen[n % 3].add(n)", "sum(seen[1])"),
    "counts": ("Counter()", "counts[n % 3] += 1", "counts[1]"),
    "order": ("OrderedDict()", "order[n] = n", "len(order)"),
    "last": ("deque(maxlen=3)", "last.append(n)", "sum(last)"),
    "user": ("UserDict()", "user[n % 3] = user.get(n % 3, 0) + 1", "user[0]"),
    "rows": ("UserList()", "rows.append(n)", "sum(rows)"),
    "maps": ("ChainMap({}, {'a': 1})", "maps[n % 3] = n", "sum(maps.values())"),
    "numbers": ("frozenset()", "numbers = numbers | {n % 5}", "len(numbers)"),
    "pair": ("(0, Path('a'))", "pair = (pair[0] + 1, pair[1])", "pair[0]"),
    "array": ("np.zeros(3)", "array[n % 3] += 1", "float(array[1])"),
    "half": ("np.float32(0)", "half = np.float32(half + 0.5)", "float(half)"),
    "total": ("np.int64(0)", "total += 1", "int(total)"),
    "day64": (
        "np.datetime64('2020-01-01')",
        "day64 = day64 + np.timedelta64(1, 'D')",
        "int(day64.astype(int))",
    ),
    "frozen": ("Frozen()", "frozen = dataclasses.replace(frozen, n=frozen.n + 1)", "frozen.n"),
    "past": ("[Frozen()]", "past.append(Frozen(n))", "sum(one.n for one in past)"),
    "phase": ("Phase.A", "phase = Phase.B if (phase is Phase.A) == (n % 3 == 1) else Phase.A", "phase.value"),
    "phases": ("{Phase.A: 0}", "phases[Phase.A] += 1", "phases[Phase.A]"),
    "path": ("Path('a')", "path = path / 'b'", "len(path.parts)"),
    "paths": ("[Path('a')]", "paths[0] = paths[0] / 'b'", "len(paths[0].parts)"),
    "when": ("datetime.datetime(2020, 1, 1)", "when = when + datetime.timedelta(1)", "when.day"),
    "day": ("datetime.date(2020, 1, 1)", "day = day + datetime.timedelta(1)", "day.day"),
    "took": ("datetime.timedelta()", "took += datetime.timedelta(1)", "took.days"),
    "third": ("fractions.Fraction(0)", "third = third + fractions.Fraction(1, 3)", "float(third)"),
    "tenth": ("decimal.Decimal(0)", "tenth = tenth + decimal.Decimal('0.1')", "float(tenth)"),
    "span": ("range(1)", "span = range(len(span) + 1)", "len(span)"),
    "window": ("slice(0, 2)", "window = slice(window.start + 1, 2)", "window.start"),
    "mark": ("uuid.UUID(int=1)", "mark = uuid.UUID(int=mark.int + 1)", "mark.int"),
    "turn": ("0j", "turn = turn + 1j", "turn.imag"),
    "text": ("b''", "text = text + b'x'", "len(text)"),
    "maybe": ("None", "maybe = 1.0 if maybe is None else maybe + 1", "maybe"),
    "big": ("2**70", "big = big * 3 % 2**90", "big % 7"),
    "ring": (
        "[torch.zeros(4) for _ in range(8)]",
        "i = n % 8; ring[i] = a[0].clone()",
        "float(sum(ring).mean())",
    ),
    "labels": (
        "{0: torch.zeros(4), 1: torch.zeros(4)}",
        "k = int(b[0]); labels[k] = a[0].clone()",
        "float(labels[1].mean())",
    ),
    "mean": ("torch.zeros(2)", "mean = 0.9 * mean + 1", "float(mean[0])"),
}
"""Variables of each kind: what they begin with, what a step does, and a number that the training takes from it."""
UNSAVABLE = {
    "flags": ("Flags.A", "flags = flags ^ Flags.B", "flags.value"),
    "graph": ("torch.zeros(2, requires_grad=True)", "graph = graph * 0.9 + 1", "float(graph[0])"),
    "sparse": ("torch.eye(3).to_sparse()", "sparse = sparse * 1.1", "float(sparse.to_dense()[0, 0])"),
    "masked": ("np.ma.zeros(3)", "masked[n % 3] = masked[n % 3] + 1", "float(masked[1])"),
    "mixed": ("(Thing(), 0)", "mixed[0].n += 1; mixed = (mixed[0], mixed[1] + 1)", "mixed[0].n + mixed[1]"),
}
"""Variables that no line can save."""


def of_kinds(kinds):
    """A script with a variable of each kind, in a function."""
    before = [f"    {name} = {begin}" for name, (begin, _, _) in kinds.items()]
    inside = [f"            {change}" for _, change, _ in kinds.values()]
    numbers = " + ".join(number for _, _, number in kinds.values())
    return "\n".join(
        [
            "import dataclasses, datetime, decimal, enum, fractions, uuid, numpy as np",
            "from collections import *\nfrom pathlib import Path",
            HEAD + TAIL + STEP,
            "@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    n: int = 0",
            "class Phase(enum.Enum): A, B = 1, 2\nclass Flags(enum.Flag): A, B = 1, 2",
            "class Thing: n = 0\ndef main():",
            *before,
            f"    {RUN}        for step, (a, b) in run.steps(loader, epochs=1):\n            n = step.number",
            *inside,
            f"            train_step(a, b, 1 + ({numbers}) % 1000 / 999)\nmain()\n",
        ]
    )


def ten_lines(before, inside):
    """A script of `carried_state` for the robot."""
    text = carried_state.SCRIPT.format(before=before, inside=inside)
    text = text.replace("sys.argv[1]", '"runs/a"').replace(
        "save=1 if 'kill' in sys.argv else 'explicit'", "save=2"
    )
    return (
        text.replace("{", "{")
        .split("print(")[0]
        .replace(
            "        if len(sys.argv) > 2 and step.number == 10: os.kill(os.getpid(), signal.SIGKILL)\n", ""
        )
    )


PROGRAMS = {
    **OWN,
    **{name: ten_lines(*lines) for name, lines in carried_state.COUNTED.items()},
    **{
        f"installed: {name}": ten_lines(LIB + lines[0], lines[1])
        for name, lines in installed_state.STATE.items()
    },
}
FIRST = {
    "minGPT: a trainer's method",
    "FedAvg: clients with loaders",
}
"""Programs of different kinds, for the quick tests."""
WORDS = {
    *(
        "a teacher that is None at first",
        "a scheduler that the loop replaces",
        "a loader of some epochs",
        "a generator function",
        "itertools.count",
        "a closure variable",
        "array.array",
        "queue.Queue",
        "ctypes",
    ),
    *(
        "a cursor",
        "an object with __next__",
        "multiprocessing.Value",
        "a database (sqlite3)",
        "an open file's position",
        "lru_cache",
    ),
    *(
        "a context variable",
        "threading.local",
        "a weak map",
        "the decimal context",
        "os.environ",
        "a module's attribute",
    ),
    *("a module's number", "itertools.cycle", "io.BytesIO", "a mapped memory", "a coroutine"),
    *("installed: a generator of the class", "optuna: a study in a database"),
}
"""Their errors say in words what to do: no line could save such state."""
UNSEEN = carried_state.NOT_SEEN | {
    "TorchScript's attribute",
}
"""No error comes before the resume; and kinds that other parts of the run decide about."""
