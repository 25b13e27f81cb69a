"""More ways to leave something changed, and more that only look so: each must be found, or left alone, by reading alone."""

import collections
import functools
import json
import logging
import math
import operator
import os
import re
import threading

import numpy as np
import torch

lock = threading.Lock()
log = logging.getLogger("x")
vocab = {"a": 1}
pat = re.compile("a")
model = torch.nn.Linear(3, 3)
q = collections.deque()
arr = np.zeros(8)
bar = type("Bar", (), {"n": 0, "update": lambda self, k: setattr(self, "n", self.n + k)})()


class Tok:
    def __init__(self):
        self.vocab = vocab
        self.stats = {"n": 0}

    def encode(self, t):
        return [self.vocab.get(w, 0) for w in pat.findall(t)]

    @property
    def size(self):
        return len(self.vocab)

    @classmethod
    def make(cls, x):
        return cls()

    def __call__(self, t):
        return {"ids": torch.tensor(self.encode(t)), "n": self.size, "o": self.make(t)}


tok = Tok()


class Base:
    def pre(self, x):
        return x + 1


class Der(Base):
    def pre(self, x):
        return super().pre(x) * 2

    def __call__(self, x):
        return self.pre(x)


der = Der()


def locked(x):
    with lock:
        return x


def printed(x):
    print(x)
    log.info("%s", x)
    return x


def alias(x):
    s = q
    t = (s, 1)
    t[0].append(x)
    return x


def viaget(x):
    d = {"k": q}
    d["k"].append(x)


def ret():
    return q


def viaret(x):
    ret().append(x)


def viadefaultarg(x, *, out=arr):
    out[0] = x


def viainner(x):
    def inner():
        q.append(x)

    inner()


def viamap(x):
    list(map(q.append, [x]))


def viasetattr(x):
    setattr(tok, "last", x)


def viadict(x):
    tok.__dict__["last"] = x


def viaglobals(x):
    globals()["zz"] = x


def viaclass(x):
    Tok.count = x


def viaslice(x):
    v = arr[2:4]
    v[:] = x


def viaview(x):
    v = arr.reshape(2, 4)
    v += x


def viadel(x):
    del vocab["a"]


def viayield(x):
    q.append(x)
    yield x


def viastar(x, *a):
    (lambda *z: z[0].append(x))(q)


def viakw(x):
    (lambda **z: z["k"].append(x))(k=q)


def viaop(x):
    operator.setitem(vocab, x, 1)


def viaenv(x):
    os.environ["A"] = str(x)


def viafor(x):
    for s in (q,):
        s.append(x)


def viacomp(x):
    [s.append(x) for s in [q]]


def viaunpack(x):
    a, b = (q, 1)
    a.append(x)


def viaor(x):
    (q or []).append(x)


def viacond(x):
    (q if x else []).append(x)


def viatern(x):
    t = q if x else None
    t.append(x)


def viapartial(x):
    functools.partial(q.append)(x)


def viawalrus(x):
    (s := q).append(x)


def viatorch(x):
    t = torch.from_numpy(arr)
    t.add_(x)


def viabar(x):
    bar.update(1)
    return x


def viafn(x):
    viafn.calls = x
    return x


def viaassert(x):
    model.weight.data.add_(x)


def viaext(x):
    q.extend([x])
    return x


def viaiadd(x):
    s = q
    s += [x]


PURE = [
    tok,
    der,
    locked,
    printed,
    lambda x: pat.sub("b", x),
    lambda x: json.loads(x),
    lambda x: vocab[x],
    lambda x: {**vocab, "b": x},
    lambda x: sorted(vocab.items(), key=lambda t: t[1]),
    lambda x: [*q, x],
    lambda x: np.concatenate([arr, [x]]),
    lambda x: arr + x,
    lambda x: model.weight * x,
    lambda x: collections.Counter(x).most_common(),
    lambda x: math.sqrt(x),
    functools.partial(Base().pre),
    lambda x: arr[x].item(),
    lambda x: dict(vocab).update(z=x),
    lambda x: list(q).append(x),
    lambda x: (lambda acc: acc.append(x))([]),
]
IMPURE = [
    alias,
    viaget,
    viaret,
    viadefaultarg,
    viainner,
    viamap,
    viasetattr,
    viadict,
    viaglobals,
    viaclass,
    viaslice,
    viaview,
    viadel,
    viayield,
    viastar,
    viakw,
    viaop,
    viaenv,
    viafor,
    viacomp,
    viaunpack,
    viaor,
    viacond,
    viatern,
    viapartial,
    viawalrus,
    viatorch,
    viabar,
    viafn,
    viaassert,
    viaext,
    viaiadd,
]
