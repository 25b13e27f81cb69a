"""Small trainings by logical shards, and the same loops in plain PyTorch: what they end with must have one digest."""

import os
import signal

import torch
import torch.nn.functional as F
from torch import nn

import samebits
from samebits import _digest as digest

SHARDS = 6
ROWS = 12
"""Of a global batch."""


class Rows(torch.utils.data.Dataset):
    """48 rows: noise, a class and a sequence of tokens."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(48, 3, 6, 6, generator=generator)
        self.labels = torch.randint(4, (48,), generator=generator)
        self.tokens = torch.randint(11, (48, 9), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index], self.tokens[index]


class Program:
    """A model, what updates it, and the gradient of one shard."""

    passes = 1
    accumulate = 1
    draws = False
    """True if the loop draws numbers, or changes buffers: plain PyTorch has other bits then."""

    def __init__(self):
        torch.manual_seed(1)
        self.net = self.model()
        self.optimizers = {"optimizer": self.optimizer(self.net)}
        self.extra = {}

    def optimizer(self, net):
        return torch.optim.AdamW(net.parameters(), 1e-2)

    def backward(self, number, images, labels, tokens, share):
        """Runs the backward of one shard in pass `number`; `share` is that of the shard in the mean."""
        (F.cross_entropy(self.net(images), labels) * share).backward()

    def update(self, number):
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    def objects(self):
        return {"net": self.net, **self.optimizers, **self.extra}


class Mlp(Program):
    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 17), nn.ReLU(), nn.Linear(17, 4))

    def optimizer(self, net):
        return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


class Convnet(Program):
    """BatchNorm's statistics, both Dropouts, channels_last, clipping."""

    draws = True

    def model(self):
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), samebits.nn.Dropout(0.2)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 4)).to(memory_format=torch.channels_last)

    def update(self, number):
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        super().update(number)


class Plain(Convnet):
    """The convnet without draws and statistics: its gradients are in channels_last, and clipped."""

    draws = False

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).to(
            memory_format=torch.channels_last
        )


class Transformer(Program):
    """Tied weights, clipping, accumulation over two steps, bfloat16 by autocast, a moving average."""

    accumulate = 2

    def model(self):
        net = nn.ModuleDict(
            {
                "tokens": nn.Embedding(11, 16),
                "layer": nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
                "unused": nn.Linear(16, 16),
            }
        )
        self.average = torch.optim.swa_utils.AveragedModel(net)
        self.average.requires_grad_(False)
        return net

    def objects(self):
        return {**super().objects(), "average": self.average}

    def backward(self, number, images, labels, tokens, share):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.net["layer"](self.net["tokens"](tokens[:, :-1]))
            if labels[0] == 0:  # a layer that some shards do not use
                hidden = self.net["unused"](hidden)
            logits = hidden @ self.net["tokens"].weight.T
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        (loss * share / self.accumulate).backward()

    def update(self, number):
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        super().update(number)
        self.average.update_parameters(self.net)


class Gan(Program):
    """Two passes over the shards, two backwards in a shard of the first, noise that is drawn."""

    passes, draws = 2, True

    def model(self):
        return nn.ModuleDict({"made": nn.Linear(5, 108), "judge": nn.Linear(108, 1)})

    def optimizer(self, net):
        self.judging = torch.optim.Adam(net["judge"].parameters(), 1e-2)
        return torch.optim.Adam(net["made"].parameters(), 1e-2)

    def objects(self):
        return {**super().objects(), "judging": self.judging}

    def noise(self, images):
        return torch.randn(len(images), 5)

    def backward(self, number, images, labels, tokens, share):
        fake = self.net["made"](self.noise(images))
        if number == 0:
            (F.softplus(-self.net["judge"](images.flatten(1))).mean() * share).backward()
            (F.softplus(self.net["judge"](fake.detach())).mean() * share).backward()
        else:
            (F.softplus(-self.net["judge"](fake)).mean() * share).backward()

    def update(self, number):
        (self.optimizers["optimizer"] if number else self.judging).step()
        self.net.zero_grad()


class PlainGan(Gan):
    """Its noise is made of the data."""

    draws = False

    def noise(self, images):
        return images.flatten(1)[:, :5]


class Rounded(Program):
    """bfloat16 weights, updated with stochastic rounding."""

    draws = True

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 9), nn.Tanh(), nn.Linear(9, 4)).bfloat16()

    def optimizer(self, net):
        return samebits.rounding.optim.AdamW(net.parameters(), lr=1e-2)

    def backward(self, number, images, labels, tokens, share):
        (F.cross_entropy(self.net(images.bfloat16()).float(), labels) * share).backward()


PROGRAMS = {one.__name__: one for one in (Mlp, Convnet, Plain, Transformer, Gan, PlainGan, Rounded)}


def loader(workers=0):
    return samebits.data.DataLoader(Rows(), batch_size=ROWS, shuffle=True, seed=5, num_workers=workers)


def train(name, epochs=3, run_dir=None, kill_at=None, shards=SHARDS, workers=0):
    """Trains by shards on the ranks that there are; returns the digest of all that the run would commit."""
    samebits.set_random_seed(1)
    program = PROGRAMS[name]()
    with samebits.Run(run_dir, save=2, **program.objects()) as run:
        for step, own in run.steps(loader(workers), epochs=epochs, shards=shards):
            for number in range(program.passes):
                values = []
                for batch in own:
                    program.backward(number, *batch, 1 / step.shards)
                    values.append(float(batch[1].sum()) / 7)
                if (step.number + 1) % program.accumulate == 0:
                    program.update(number)
            run.state.total = run.state.get("total", 0.0) + own.sum(values)
            if step.number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return ending(program, run.state.total)


def plain(name, epochs=3, shards=SHARDS):
    """Trains without samebits, but for its loader: the digest is that of `train` where nothing is drawn."""
    program, steps, total = PROGRAMS[name](), 0, 0.0
    batches = loader()
    for _ in range(epochs):
        for batch in batches:
            for number in range(program.passes):
                sums = [float(batch[1][shard::shards].sum()) / 7 for shard in range(shards)]
                for shard in range(shards):
                    program.backward(number, *(part[shard::shards] for part in batch), 1 / shards)
                if (steps + 1) % program.accumulate == 0:
                    program.update(number)
            added = sums[0]
            for value in sums[1:]:
                added += value
            steps, total = steps + 1, total + added
    return ending(program, total)


def ending(program, total):
    return digest.of_value([{name: one.state_dict() for name, one in program.objects().items()}, total])
