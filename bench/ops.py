"""What op determinism costs: whole training steps, single ops, and the switch itself.

    python bench/ops.py [--rounds 9] [--only steps|ops|switch] [--threads 1,2] [--json FILE]

Everything in one process, with the modes taking turns in each round; the fastest of the rounds counts, and ratios are to
torch's default in the same run. Modes: torch's default; `torch.use_deterministic_algorithms(True)` as it comes (memory
fill included); `enable_op_determinism()`; the same with `across="threads"`, and with `across="machines"`. A
whole step is forward, loss, backward and Adam on fixed data. "refused" is an op that the mode raises at.
"""

import argparse
import contextlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import figures
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samebits

MODES = ("default", "torch's switch", "samebits", "samebits, threads too", "samebits, machines too")
SHOWN = {"torch's switch": "torch's switch", "samebits": "switch", "samebits, machines too": "any CPU"}
"""The titles of modes in a page."""


@contextlib.contextmanager
def mode(name: str) -> Iterator[None]:
    """One of MODES, put back afterwards."""
    if name == "torch's switch":
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
    elif name.startswith("samebits"):
        across = {
            "samebits": "runs",
            "samebits, threads too": "threads",
            "samebits, machines too": "machines",
        }
        with samebits.enable_op_determinism(across=across[name]):
            yield
    else:
        yield


class Transformer(nn.Module):
    """Six layers as in GPT-2, width 256, over 256 tokens of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each next token."""
        return self.head(self.layers(self.embed(tokens))).flatten(0, 1)


class Block(nn.Module):
    """Two convolutions with batch normalisation and a way around them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.around = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Half the size where the stride is 2."""
        return F.relu(self.body(x) + self.around(x))


def convnet() -> nn.Module:
    """Like ResNet on 32 x 32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """784 - 1024 - 1024 - 10."""
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


class Sequences(nn.Module):
    """Two recurrent layers over 32 steps, and a head on the last."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each sequence."""
        return self.head(self.layers(x)[0][:, -1])


def training_step(
    make: Callable[[], nn.Module], inputs: Tensor, targets: Tensor, dtype: Any
) -> Callable[[], None]:
    """One step of training, ready to be called again and again."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()

    return step


def steps() -> dict[str, Callable[[], None]]:
    """The models of the benchmark, in float32 and bfloat16."""
    tokens = torch.randint(1000, (4, 256))
    models = {
        "transformer, 6 layers": (Transformer, tokens, torch.randint(1000, (4 * 256,))),
        "convnet, like ResNet": (convnet, torch.randn(32, 3, 32, 32), torch.randint(10, (32,))),
        "LSTM, 2 layers": (partial(Sequences, nn.LSTM), torch.randn(32, 32, 64), torch.randint(10, (32,))),
        "GRU, 2 layers": (partial(Sequences, nn.GRU), torch.randn(32, 32, 64), torch.randint(10, (32,))),
        "MLP, batch 256": (mlp, torch.randn(256, 784), torch.randint(10, (256,))),
    }
    return {
        f"{name}, {str(dtype)[6:]}": training_step(*made, dtype)
        for name, made in models.items()
        for dtype in (torch.float32, torch.bfloat16)
    }


def backward(make: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Any]:
    """The backward of an op, again and again on one graph."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = make(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    grad = torch.randn(out.shape).to(out.dtype)
    return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)


def ops() -> dict[str, Callable[[], Any]]:
    """Ops with a replacement, at sizes of about 10^6 elements, and one without."""
    x, y, half = torch.randn(1_000_003), torch.randn(1_000_003), torch.randn(1_000_003).bfloat16()
    small = torch.randn(16)
    index, values, base = torch.randint(1000, (1 << 20,)), torch.randn(1 << 20), torch.randn(1000)
    square = torch.randn(512, 512)
    positive = square @ square.T + 512 * torch.eye(512)
    image, weight = torch.randn(32, 64, 32, 32), torch.randn(64, 64, 3, 3)
    rows, head = torch.randn(65536, 64), torch.randn(65536, 10)
    short_square, short_rows, short_head = square.bfloat16(), rows.bfloat16(), head.bfloat16()
    normal = torch.randn(4096, 768)
    scale, shift = torch.ones(768), torch.zeros(768)
    layer_norm = lambda a, w, b: F.layer_norm(a, (768,), w, b)  # noqa: E731
    unpool = (torch.randn(8, 16, 64, 64), torch.arange(64 * 64).view(64, 64).expand(8, 16, 64, 64) * 4)
    return {
        "add of 16 (no replacement)": lambda: torch.add(small, small),
        "sum": x.sum,
        "sum, bfloat16": half.sum,
        "mean": x.mean,
        "nansum": x.nansum,
        "prod": x.prod,
        "norm 1": lambda: torch.linalg.vector_norm(x, 1),
        "norm 2": lambda: torch.linalg.vector_norm(x, 2),
        "var": x.var,
        "dot": lambda: torch.dot(x, y),
        "mse_loss": lambda: F.mse_loss(x, y),
        "mm 512": lambda: square @ square,
        "mm 64 x 512 x 512": lambda: square[:64] @ square,
        "mm 1024 x 1024 x 256": lambda: normal[:1024, :256].t() @ normal[:1024],
        "linear head's weight gradient": lambda: head.t() @ rows,
        "mv 4096 x 768": lambda: normal @ scale,
        "bmm 32 x 128 x 64 x 128": lambda: (
            normal.view(-1)[: 32 * 128 * 64].view(32, 128, 64)
            @ normal.view(-1)[: 32 * 128 * 64].view(32, 64, 128)
        ),
        "mm 512, bfloat16": lambda: short_square @ short_square,
        "linear head, bfloat16": lambda: short_head.t() @ short_rows,
        "layer_norm backward": backward(layer_norm, normal, scale, shift),
        "layer_norm backward, bfloat16": backward(
            layer_norm, normal.bfloat16(), scale.bfloat16(), shift.bfloat16()
        ),
        "conv2d backward": backward(lambda a, w: F.conv2d(a, w, padding=1), image, weight),
        "conv2d backward, 1 x 1": backward(F.conv2d, image, weight[:, :, :1, :1]),
        "conv2d backward, batch 1": backward(lambda a, w: F.conv2d(a, w, padding=1), image[:1], weight),
        "conv2d backward, bfloat16": backward(
            lambda a, w: F.conv2d(a, w, padding=1), image.bfloat16(), weight.bfloat16()
        ),
        "conv1d backward": backward(F.conv1d, torch.randn(16, 64, 1000), torch.randn(64, 64, 5)),
        "conv_transpose2d backward": backward(
            lambda a, w: F.conv_transpose2d(a, w, stride=2),
            torch.randn(8, 32, 32, 32),
            torch.randn(32, 16, 3, 3),
        ),
        "exp2": x.exp2,
        "pow 1.7": lambda: x.abs().pow(1.7),
        "softplus": lambda: F.softplus(x),
        "atan2": lambda: torch.atan2(x, y),
        "rfft of 2^20": lambda: torch.fft.rfft(values),
        "fft of 1024 x 1024": lambda: torch.fft.fft(values.view(1024, 1024)),
        "index_put, accumulate, duplicates": lambda: base.index_put((index,), values, accumulate=True),
        "index_put, overwrite, duplicates": lambda: base.index_put((index,), values),
        "put_, overwrite, duplicates": lambda: base.clone().put_(index, values),
        "max_unpool2d": lambda: F.max_unpool2d(*unpool, 2),
        "cholesky 512 (serial)": lambda: torch.linalg.cholesky(positive),
        "solve 512 (serial)": lambda: torch.linalg.solve(positive, square),
        "svd 512 (serial)": lambda: torch.linalg.svd(square),
    }


def fastest(
    cases: dict[str, Callable[[], Any]], rounds: int, threads: int, modes: Sequence[str] = MODES
) -> dict[str, dict[str, float | None]]:
    """Seconds of each case in each mode (None: refused): the fastest round, the modes taking turns."""
    torch.set_num_threads(threads)
    best: dict[str, dict[str, float | None]] = {name: {} for name in cases}
    calls: dict[str, int] = {}
    for turn in range(rounds + 1):  # the first warms up, and tells how often to call
        for which in modes:
            with mode(which):
                for name, case in cases.items():
                    seconds = once(case, calls.get(name, 1))
                    if turn == 0:
                        if which == "default":
                            calls[name] = max(1, min(1000, int(0.02 / max(1e-6, once(case, 1) or 1))))
                    elif seconds is None or best[name].get(which, 1.0) is None:
                        best[name][which] = None
                    else:
                        best[name][which] = min(seconds, best[name].get(which) or seconds)
    return best


def once(case: Callable[[], Any], calls: int) -> float | None:
    """Seconds of one call, over `calls` calls; None if torch refuses, or oneDNN has no such LSTM on this CPU."""
    begin = time.perf_counter()
    try:
        for _ in range(calls):
            case()
    except RuntimeError as error:
        expected = any(word in str(error) for word in ("deterministic", "create a primitive descriptor"))
        if not expected and not isinstance(error, samebits.errors.UnimplementedError):
            raise
        return None
    return (time.perf_counter() - begin) / calls


def switch_times(rounds: int) -> dict[str, float]:
    """Milliseconds of turning on in fresh processes, once torch is imported: ours, and torch's own."""
    prepare = "import time, torch, samebits; samebits.set_random_seed(1); t = time.perf_counter(); "
    calls = {
        "samebits.enable_op_determinism()": "samebits.enable_op_determinism()",
        "torch.use_deterministic_algorithms(True)": "torch.use_deterministic_algorithms(True)",
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            source = f"{prepare}{call}; print((time.perf_counter() - t) * 1e3)"
            printed = subprocess.run(
                [sys.executable, "-c", source], capture_output=True, text=True, check=True
            ).stdout
            best[name] = min(best[name], float(printed))
    return best


def show(title: str, best: dict[str, dict[str, float | None]]) -> None:
    """Prints one table: milliseconds by default, and the other modes' ratios to it."""
    print(f"\n{title}\n{'':36}{'default':>12}" + "".join(f"{name:>24}" for name in MODES[1:]))
    for name, times in best.items():
        base = times["default"]
        ratios = [times[which] for which in MODES[1:]]
        shown = "".join(f"{'refused' if None in (t, base) else f'{t / base:.2f}':>24}" for t in ratios)
        print(f"{name:36}{(base or 0) * 1e3:>9.3f} ms{shown}", flush=True)


def as_table(found: dict[int, dict[str, dict[str, float | None]]]) -> dict[str, Any]:
    """The table of a page: for each number of threads milliseconds by default, and the ratios of the modes that it shows."""
    columns, rows = [("", "")], {}
    for threads, best in found.items():
        columns += [(f"{threads} thread{'s' * (threads > 1)}", figures.MILLISECONDS)]
        columns += [(title, figures.RATIO) for title in SHOWN.values()]
        for name, times in best.items():
            base = times["default"]
            ratios = ["refused" if None in (times[one], base) else times[one] / base for one in SHOWN]
            rows[name] = [*rows.get(name, [name]), "refused" if base is None else base * 1e3, *ratios]
    return figures.table(columns, [*rows.values()])


def main() -> None:
    """Prints the tables."""
    file = figures.file_asked()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("steps", "ops", "switch"))
    parser.add_argument("--threads", default="1,2")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    found: dict[str, dict[int, Any]] = {}
    for threads in map(int, asked.threads.split(",")):
        if asked.only in (None, "steps"):
            found.setdefault("steps", {})[threads] = best = fastest(steps(), asked.rounds, threads)
            show(f"Whole training step, {threads} thread(s)", best)
        if asked.only in (None, "ops"):
            found.setdefault("ops", {})[threads] = best = fastest(ops(), asked.rounds, threads)
            show(f"Single ops, {threads} thread(s)", best)
    tables = {name: as_table(of_threads) for name, of_threads in found.items()}
    if asked.only in (None, "switch"):
        times = switch_times(min(asked.rounds, 5))
        print("\nTurning on, in a fresh process that has imported torch")
        for name, milliseconds in times.items():
            print(f"{name:48}{milliseconds:9.1f} ms")
        turned = [[f"`{name}`", milliseconds] for name, milliseconds in times.items()]
        tables["switch"] = figures.table([("", ""), ("turning on", "{:.0f} ms")], turned)
    figures.save(file, **tables)


if __name__ == "__main__":
    main()
