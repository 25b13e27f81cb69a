"""A small language model on bytes, from a text file to samples, as a training script that can be killed anywhere.

python examples/language_model.py                   # learns from Python's own documentation; start it again after a kill
python examples/language_model.py --text book.txt   # or from a file of yours
samebits verify examples/language_model.py          # prove that it ends with the same bits; --device cuda for a GPU's

What was chosen, and where to change it: the vocabulary is the 256 bytes, so no tokeniser has to be saved; an epoch is a
number of random crops, not a pass over the text, and a crop's place is a function of (seed, epoch, number of the crop);
the last tenth of the text is for validation, read in order; the learning rate warms up over 5% of the steps and falls
with a cosine, so --epochs is part of the schedule; the best weights by validation loss are kept in `run.state`.
"""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import samebits
from samebits.data import Pipeline

CONTEXT, BATCH, CROPS = 32, 16, 2560


def read_text(path):
    """The bytes of a file, or those of the language reference that comes with every Python."""
    if path is not None:
        with open(path, "rb") as file:
            return torch.tensor(list(file.read()), dtype=torch.uint8)
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(text.encode()[:300_000]), dtype=torch.uint8)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class LanguageModel(nn.Module):
    def __init__(self, width=64, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x):
        x = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))


def loss_of(model, rows):
    """Mean cross entropy in nats per byte; a row is CONTEXT bytes and the one that follows."""
    rows = rows.long()
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def validate(model, batches, device):
    model.eval()
    losses = [loss_of(model, rows.to(device)).item() for rows in batches]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def sample(model, start, length, device):
    model.eval()
    text = list(start.encode())
    for _ in range(length):
        logits = model(torch.tensor([text[-CONTEXT:]], device=device))[0, -1]
        text.append(int(torch.multinomial(F.softmax(logits / 0.8, 0), 1)))
    return bytes(text).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", help="a file to learn from")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--run-dir", default="runs/language_model")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: other bits, the same from run to run")
    args = parser.parse_args()

    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")

    text = read_text(args.text)
    if len(text) < 20 * CONTEXT:
        parser.error(f"--text {args.text}: {len(text)} bytes are too few to learn from")
    train_text, val_text = text[: -len(text) // 10], text[-len(text) // 10 :]

    def crop(number, rng):
        start = int(rng.integers(len(train_text) - CONTEXT))
        return train_text[start : start + CONTEXT + 1]

    batches = Pipeline.range(CROPS).map(crop, num_parallel_calls=args.workers).batch(BATCH)
    val_batches = val_text[: (len(val_text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    val_batches = val_batches[:640].split(BATCH)

    model = LanguageModel().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.1)
    steps = args.epochs * (CROPS // BATCH)
    warm = max(1, steps // 20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * n / steps))
    )

    with samebits.Run(args.run_dir, model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for step, rows in run.steps(batches, epochs=args.epochs):
            loss = loss_of(model, rows.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)

            if step.ends_epoch:
                val_loss = validate(model, val_batches, args.device)
                print(f"epoch {step.epoch:2d}  loss {loss.item():.4f}  val loss {val_loss:.4f} nats per byte")
                if val_loss < run.state.get("best", math.inf):
                    run.state.best = val_loss
                    run.state.best_weights = copy.deepcopy(model.state_dict())

        model.load_state_dict(run.state.best_weights)
        print(f"best val loss {run.state.best:.4f}\n\n{sample(model, 'The ', 200, args.device)}")


if __name__ == "__main__":
    main()
