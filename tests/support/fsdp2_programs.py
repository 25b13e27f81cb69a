"""The trainings of `shard_programs`, sharded by FSDP2: what they end with must have the digest of the replicated ones."""

import os
import signal

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import samebits
import shard_programs as programs
from samebits import _digest as digest


class Sharded(programs.Program):
    """A program whose model is sharded, or not."""

    def __init__(self, shards_model, **options):
        self.shards_model, self.options = shards_model, options
        super().__init__()

    def model(self):
        net = self.layers()
        if self.shards_model:
            self.shard(net)
        return net

    def shard(self, net):
        for layer in net.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, **self.options)
        fully_shard(net, **self.options)


class Mlp(Sharded, programs.Mlp):
    def layers(self):
        return programs.Mlp.model(self)


class Convnet(Sharded):
    """BatchNorm's statistics, Dropout, rows that few ranks share (3 and 4)."""

    def layers(self):
        return nn.Sequential(
            nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(48, 4)
        )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.sometimes, self.never = nn.Linear(16, 16), nn.Linear(3, 3)

    def forward(self, hidden, uses):
        hidden = self.layer(hidden)
        return self.sometimes(hidden) if uses else hidden


class Language(nn.Module):
    """Tied weights, a layer that some shards do not use, one that none uses."""

    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(11, 16), nn.ModuleList([Block(), Block()])

    def forward(self, tokens, uses):
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden, uses)
        return hidden @ self.tokens.weight.T


class Transformer(Sharded):
    """AdamW, bfloat16 by autocast, clipping, accumulation over two steps."""

    accumulate = 2

    def layers(self):
        return Language()

    def shard(self, net):
        for block in net.blocks:
            fully_shard(block, **self.options)
        fully_shard(net, **self.options)

    def backward(self, number, images, labels, tokens, share):
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.net(tokens[:, :-1], bool(labels[0] == 0))
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        (loss * share / self.accumulate).backward()

    def update(self, number):
        self.norm = samebits.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        super().update(number)


class Gan(Sharded, programs.Gan):
    """Two models, one of them not sharded, two passes over the shards, noise that is drawn."""

    def layers(self):
        return programs.Gan.model(self)

    def shard(self, net):
        fully_shard(net["judge"], **self.options)

    def backward(self, number, images, labels, tokens, share):
        fake, judge = self.net["made"](self.noise(images)), self.net["judge"]
        if number == 0:
            both = F.softplus(-judge(images.flatten(1))).mean() + F.softplus(judge(fake.detach())).mean()
            (both * share).backward()
        else:
            (F.softplus(-judge(fake)).mean() * share).backward()


class Rounded(Sharded):
    """Weights and state of 16 bits, rounded stochastically: rows of 27 elements, which no block of a stream fits."""

    def layers(self):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(108, 27), nn.Tanh(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 4)
        ).bfloat16()

    def optimizer(self, net):
        return samebits.rounding.optim.AdamW(net.parameters(), lr=1e-2, state_dtype=torch.bfloat16)

    def backward(self, number, images, labels, tokens, share):
        (F.cross_entropy(self.net(images.bfloat16()).float(), labels) * share).backward()


class RoundedSgd(Rounded):
    """float16, momentum in float32."""

    def layers(self):
        return super().layers().half()

    def optimizer(self, net):
        return samebits.rounding.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def backward(self, number, images, labels, tokens, share):
        (F.cross_entropy(self.net(images.half()).float(), labels) * share).backward()


PROGRAMS = {one.__name__: one for one in (Mlp, Convnet, Transformer, Gan, Rounded, RoundedSgd)}


def train(
    name, *, shards_model=True, epochs=2, shards=programs.SHARDS, run_dir=None, kill_at=None, **options
):
    """Trains by shards on the ranks that there are; returns the digest of the whole state."""
    samebits.set_random_seed(1)
    program = PROGRAMS[name](shards_model, **options)
    with samebits.Run(run_dir, save=2, **program.objects()) as run:
        for step, own in run.steps(programs.loader(), epochs=epochs, shards=shards):
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
        states = {one: thing.state_dict() for one, thing in program.objects().items()}
        return digest.of_value([whole(states), run.state.total])


def whole(value):
    """Returns nested containers with whole tensors in the place of DTensors."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [whole(one) for one in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value
