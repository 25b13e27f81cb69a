"""samebits.rounding on the CPU against torch and torchao's way: interleaved, medians of ratios.

    python bench/rounding.py [rounds] [--json FILE]
    python bench/rounding.py --lowered
    python bench/rounding.py --quality

Speed, in ns per element at one and at two threads (one: time of the process; two: of the wall). "faster" is theirs / ours.
torchao's way is its code in torch's ops: bits of the float32, plus 16 random ones of torch's generator, cut off; its AdamW
is `single_param_adam`, run op by op, with state of the weights' dtype. torch's fused AdamW has state of that dtype, too,
and rounds weights and state to nearest; ours has float32 state where it is not said.

Lowered: a training step of a network in bfloat16 (two linear layers, layer norm, cross entropy, AdamW over lists), captured
and lowered, in ms at one thread: "factor" is lowered / captured; in float32, the same captured step in float32 / in bfloat16.

Quality: small networks on the digits, all of them in bfloat16 (two linear layers with SGD and with AdamW; a convnet with
AdamW whose state is bfloat16, too), rounded to nearest and stochastically: loss after training, and relative distance of
the weights to those of the same training in float32; three seeds, two threads. torch's own state has the weights' dtype.
"""

import os
import sys
import time
from statistics import mean, median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import figures
import torch
import torch.nn.functional as F

import samebits
import samebits.random as sr
from samebits import replica, rounding
from samebits.rounding import optim, stochastic_round

LARGE, WEIGHTS = 1 << 24, 1 << 23
KEY = sr.key(1)
BF16 = torch.bfloat16


def torchao_round(x):
    """torchao's `_fp32_to_bf16_sr`, in the form that its comment calls slightly faster."""
    bits = x.view(torch.int32) + torch.randint(0, 1 << 16, x.shape, dtype=torch.int32)
    return (bits & -65536).view(torch.float32).bfloat16()


def torchao_adamw(p, grad, exp_avg, exp_avg_sq, step, lr=1e-3, beta1=0.9, beta2=0.999, decay=1e-2, eps=1e-8):
    """torchao's `single_param_adam` with BF16_STOCHASTIC_ROUND."""
    wide, g = p.float(), grad.float()
    wide = wide - lr * decay * wide
    m = exp_avg.float().lerp(g, 1 - beta1)
    v = exp_avg_sq.float().lerp(g.square(), 1 - beta2)
    exp_avg.copy_(m)
    exp_avg_sq.copy_(v)
    denominator = (v.sqrt() / (1 - beta2**step) ** 0.5) + eps
    p.copy_(torchao_round(wide - lr * (m / (1 - beta1**step)) / denominator))


def rounding_rows():
    x, out = torch.randn(LARGE), torch.empty(LARGE, dtype=BF16)
    half = torch.empty(LARGE, dtype=torch.float16)
    return LARGE, [
        ("bf16 | torchao's way", lambda: stochastic_round(x, BF16, KEY), lambda: torchao_round(x)),
        (
            "bf16, out= | torchao's way",
            lambda: stochastic_round(x, BF16, KEY, out=out),
            lambda: torchao_round(x),
        ),
        ("bf16 | x.to(bf16)", lambda: stochastic_round(x, BF16, KEY), lambda: x.to(BF16)),
        ("bf16, out= | copy_", lambda: stochastic_round(x, BF16, KEY, out=out), lambda: out.copy_(x)),
        (
            "fp16, out= | copy_",
            lambda: stochastic_round(x, torch.float16, KEY, out=half),
            lambda: half.copy_(x),
        ),
        (
            "fp8 e4m3 | x.to",
            lambda: stochastic_round(x, torch.float8_e4m3fn, KEY),
            lambda: x.to(torch.float8_e4m3fn),
        ),
        (
            "fp8 e5m2 | x.to",
            lambda: stochastic_round(x, torch.float8_e5m2, KEY),
            lambda: x.to(torch.float8_e5m2),
        ),
    ]


def stepper(make, sizes=(WEIGHTS,)):
    weights = [torch.nn.Parameter(torch.randn(n).to(BF16)) for n in sizes]
    for p in weights:
        p.grad = torch.randn(p.shape).to(BF16)
    return make(weights).step


def theirs_stepper():
    p, grad = torch.randn(2, WEIGHTS).to(BF16)
    exp_avg, exp_avg_sq = torch.zeros(2, WEIGHTS, dtype=BF16)
    return lambda: torchao_adamw(p, grad, exp_avg, exp_avg_sq, 10)


def optimizer_rows():
    def ours(**kw):
        return stepper(lambda w: optim.AdamW(w, **kw))

    fused = stepper(lambda w: torch.optim.AdamW(w, fused=True))
    adamw = ours()
    small = (1024,) * 256
    return WEIGHTS, [
        ("AdamW | torch fused", adamw, fused),
        ("AdamW, bf16 state | torch fused", ours(state_dtype=BF16), fused),
        ("AdamW | torchao's way", adamw, theirs_stepper()),
        (
            "SGD momentum | torch fused",
            stepper(lambda w: optim.SGD(w, momentum=0.9)),
            stepper(lambda w: torch.optim.SGD(w, momentum=0.9, fused=True)),
        ),
        (
            "AdamW, 256 of 1,024 (/ 2**18)",
            scaled(stepper(optim.AdamW, small)),
            scaled(stepper(lambda w: torch.optim.AdamW(w, fused=True), small)),
        ),
    ]


def scaled(step):
    """As often as it takes for as many elements as the other rows have."""
    return lambda: [step() for _ in range(WEIGHTS // (1 << 18))]


def compare(ours, theirs, rounds, clock):
    """(ours, theirs) in ns per call and the ratio theirs / ours: medians over interleaved rounds."""
    pairs = []
    for number in range(rounds + 1):
        took = []
        for call in (ours, theirs) if number % 2 else (theirs, ours):
            began = clock()
            call()
            took.append(clock() - began)
        pairs.append(took if number % 2 else took[::-1])
    ours_ns, theirs_ns = zip(*pairs[1:], strict=True)  # the first round compiles
    return median(ours_ns), median(theirs_ns), median(b / a for a, b in pairs[1:])


def speed(rounds):
    columns, found = [("", "")], {}
    for threads, clock in ((1, time.process_time_ns), (2, time.perf_counter_ns)):
        torch.set_num_threads(threads)
        columns += [(f"{threads} thread{'s' * (threads > 1)}: samebits", figures.THREE_DIGITS)]
        columns += [("theirs", figures.THREE_DIGITS), ("faster", f"{figures.THREE_DIGITS}x")]
        print(f"\nns per element, threads: {threads}")
        print(f"{'':32} {'samebits':>9} {'theirs':>9} {'faster':>9}")
        for elements, rows in (rounding_rows(), optimizer_rows()):
            for name, ours, theirs in rows:
                a, b, ratio = compare(ours, theirs, rounds, clock)
                print(f"{name:32} {a / elements:9.2f} {b / elements:9.2f} {ratio:8.2f}x", flush=True)
                found.setdefault(name, [name]).extend((a / elements, b / elements, ratio))
    return figures.table(columns, [*found.values()])


def network(width, dtype):
    layers = [
        torch.nn.Linear(width, width),
        torch.nn.LayerNorm(width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    ]
    return torch.nn.Sequential(*layers).to(dtype)


def train(model, optimizer, x, y):
    loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def captured(width, batch, dtype):
    """(captured step, its arguments)."""
    model = network(width, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    args = model, optimizer, torch.randn(batch, width).to(dtype), torch.randint(10, (batch,))
    train(*args)
    return replica.capture(train, *args, world_size=1), args


def lowered(rounds):
    torch.set_num_threads(1)
    print(f"{'width x batch':14} {'ops':>4} {'captured':>9} {'lowered':>9} {'factor':>7} {'in float32':>11}")
    for width, batch in ((64, 32), (512, 128), (2048, 256)):
        lowered_row(width, batch, rounds)


def lowered_row(width, batch, rounds):
    step, args = captured(width, batch, BF16)
    wide, wide_args = captured(width, batch, torch.float32)
    plain, exact = rounding.lower(step, rounding=False), rounding.lower(wide, rounding=False)
    methods = rounding.assign_methods(step, replica.analyze(step))
    rounded = rounding.lower(step, seed=1)
    a, b, factor = compare(lambda: plain(*args), lambda: rounded(*args), rounds, time.process_time_ns)
    _, _, single = compare(lambda: plain(*args), lambda: exact(*wide_args), rounds, time.process_time_ns)
    size = f"{width} x {batch}"
    print(
        f"{size:14} {len(methods):4} {a / 1e6:9.2f} {b / 1e6:9.2f} {factor:6.2f}x {single:10.2f}x",
        flush=True,
    )


def main():
    file = figures.file_asked()
    if "--quality" in sys.argv:
        quality()
        return
    if "--lowered" in sys.argv:
        samebits.set_random_seed(1)
        lowered(15)
        return
    samebits.set_random_seed(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    figures.save(file, speed=speed(rounds))
    print()
    lowered(rounds)


def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def linear():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def convnet():
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )


def trained(network, make, dtype, seed, batch, steps):
    """(mean loss over all digits, weights) after training with all of the arithmetic in `dtype`."""
    samebits.set_random_seed(seed)
    images, labels = digits()
    model = network().to(dtype)
    optimizer = make(model.parameters())
    picked = torch.randint(len(labels), (steps, batch))
    for at in picked:
        loss = F.cross_entropy(model(images[at].to(dtype)).float(), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        loss = F.cross_entropy(model.float()(images), labels).item()
        return loss, torch.cat([p.flatten() for p in model.parameters()])


QUALITY = {
    "SGD": (
        (linear, 64, 3000),
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
        lambda p: optim.SGD(p, lr=0.02, momentum=0.9),
    ),
    "AdamW": (
        (linear, 64, 3000),
        lambda p: torch.optim.AdamW(p, lr=2e-4),
        lambda p: optim.AdamW(p, lr=2e-4),
    ),
    "convnet": (
        (convnet, 32, 1000),
        lambda p: torch.optim.AdamW(p, lr=2e-4),
        lambda p: optim.AdamW(p, lr=2e-4, state_dtype=BF16),
    ),
}


def quality():
    torch.set_num_threads(2)
    print(f"{'':8} {'':4} {'loss':>9} {'':9} {'':11}   {'distance of weights':>21}")
    head = f"{'float32':>9} {'nearest':>9} {'stochastic':>11}   {'nearest':>9} {'stochastic':>11}"
    print(f"{'':8} {'seed':>4} {head}")
    for name, ((network, batch, steps), nearest, stochastic) in QUALITY.items():
        far = []
        for seed in (1, 2, 3):
            exact, weights = trained(network, nearest, torch.float32, seed, batch, steps)
            others = [trained(network, make, BF16, seed, batch, steps) for make in (nearest, stochastic)]
            apart = [((held - weights).norm() / weights.norm()).item() for _, held in others]
            losses = [loss for loss, _ in others]
            far.append([*(abs(loss - exact) for loss in losses), *apart])
            row = f"{losses[0]:9.5f} {losses[1]:11.5f}   {apart[0]:9.4f} {apart[1]:11.4f}"
            print(f"{name:8} {seed:4} {exact:9.5f} {row}", flush=True)
        a, b, c, d = (mean(column) for column in zip(*far, strict=True))
        print(
            f"{name:8} mean distance to float32: loss {a:.5f} {b:.5f}, nearest / stochastic {a / b:.1f}; ",
            end="",
        )
        print(f"weights {c:.4f} {d:.4f}, {c / d:.1f}", flush=True)


if __name__ == "__main__":
    main()
