"""Programs with text, speech and other sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, rnn
from torch.utils.checkpoint import checkpoint

from lab.programs.registry import program, trained


def words(count: int = 8, length: int = 12, vocabulary: int = 40) -> Tensor:
    """Returns random words."""
    return torch.randint(0, vocabulary, (count, length))


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """A small GPT with tied embeddings; `recomputed`: activations are computed anew backward."""

    def __init__(self, *, recomputed: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Embedding(12, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.recomputed = nn.LayerNorm(32), recomputed

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the loss of the next words."""
        x = F.dropout(self.words(ids) + self.places.weight[: ids.shape[1]], 0.1, self.training)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        logits = self.norm(x) @ self.words.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@program
def gpt() -> Any:
    """AdamW, clipped gradients, a warm-up, and words that are sampled at the end."""
    net, ids = Gpt(), words()
    made = trained(net, lambda _: net(ids), torch.optim.AdamW, clip=1.0, betas=(0.9, 0.95))
    with torch.no_grad():
        chances = F.softmax(net.norm(net.words(ids)) @ net.words.weight.T / 0.8, -1)
    best = chances[:, -1].topk(10).values
    return [*made, torch.multinomial(best, 3), chances.cumsum(-1)]


@program
def gpt_with_checkpointing() -> Any:
    """Activations are computed anew, under autocast."""
    net, ids = Gpt(recomputed=True), words()

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(ids)

    return trained(net, loss)


@program
def llama_block() -> Any:
    """RMS norm, rotary positions by complex numbers, shared keys, SwiGLU."""
    q, kv, gate, up, down = (
        nn.Linear(a, b, bias=False) for a, b in ((32, 32), (32, 32), (32, 64), (32, 64), (64, 32))
    )
    norm, x = nn.RMSNorm(32), torch.randn(4, 10, 32)
    turns = torch.outer(torch.arange(10.0), 1e4 ** -(torch.arange(0, 8, 2) / 8))
    rotation = torch.polar(torch.ones_like(turns), turns)

    def rotated(part: Tensor) -> Tensor:
        turned = torch.view_as_complex(part.unflatten(-1, (-1, 2))) * rotation
        return torch.view_as_real(turned).flatten(-2)

    def loss(_: int) -> Tensor:
        h = norm(x)
        query = rotated(q(h).unflatten(-1, (4, 8)).transpose(1, 2))
        key, value = kv(h).unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, rotated(key), value, is_causal=True, enable_gqa=True)
        h = x + seen.transpose(1, 2).flatten(2)
        return F.mse_loss(down(F.silu(gate(h)) * up(h)), x)

    return trained(nn.ModuleList((q, kv, gate, up, down, norm)), loss)


@program
def lstm_of_packed_sequences() -> Any:
    """A bidirectional LSTM over sequences of several lengths."""
    embed, lstm, head = nn.Embedding(40, 16), nn.LSTM(16, 12, 2, bidirectional=True), nn.Linear(48, 3)
    ids, y = words(), torch.randint(0, 3, (8,))
    lengths = torch.tensor([12, 11, 9, 9, 7, 4, 2, 1])

    def loss(_: int) -> Tensor:
        packed = rnn.pack_padded_sequence(embed(ids), lengths, batch_first=True)
        _, (h, _) = lstm(packed)
        return F.cross_entropy(head(h.permute(1, 0, 2).flatten(1)), y)

    return trained(nn.ModuleList((embed, lstm, head)), loss, clip=0.5)


@program
def seq2seq_of_grus() -> Any:
    """An encoder and a decoder with attention, and teacher forcing by chance."""
    embed, encoder, cell = nn.Embedding(40, 16), nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)
    head, source, target = nn.Linear(16, 40), words(), words()

    def loss(_: int) -> Tensor:
        memory, last = encoder(embed(source))
        h, word, total = last[0], target[:, 0], torch.zeros(())
        for step in range(1, 6):
            weights = F.softmax(torch.einsum("bth,bh->bt", memory, h), 1)
            seen = torch.einsum("bt,bth->bh", weights, memory)
            h = cell(torch.cat((embed(word), seen), 1), h)
            logits = head(h)
            total = total + F.cross_entropy(logits, target[:, step])
            word = target[:, step] if torch.rand(()) < 0.5 else logits.argmax(1)
        return total

    return trained(nn.ModuleList((embed, encoder, cell, head)), loss)


@program
def speech_with_ctc() -> Any:
    """Convolutions over time, and the CTC loss."""
    net = nn.Sequential(
        nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 6, 3, padding=1)
    )
    sound, target = torch.randn(4, 8, 30), torch.randint(1, 6, (4, 8))
    lengths, sizes = torch.tensor([30, 28, 25, 20]), torch.tensor([8, 7, 5, 3])

    def loss(_: int) -> Tensor:
        chances = net(sound).permute(2, 0, 1).log_softmax(2)
        return F.ctc_loss(chances, target, lengths, sizes, zero_infinity=True)

    return trained(net, loss)


@program
def encoder_with_padding() -> Any:
    """nn.TransformerEncoder with a padding mask, trained, and evaluated without gradients."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net, head, x = nn.TransformerEncoder(layer, 2), nn.Linear(32, 3), torch.randn(6, 9, 32)
    padding = torch.arange(9) >= torch.tensor([[9], [8], [8], [5], [3], [1]])
    y = torch.randint(0, 3, (6,))

    def loss(_: int) -> Tensor:
        return F.cross_entropy(head(net(x, src_key_padding_mask=padding)[:, 0]), y)

    made = trained(nn.ModuleList((net, head)), loss)
    net.eval()
    with torch.no_grad():
        return [*made, net(x, src_key_padding_mask=padding)]


@program
def translation() -> Any:
    """nn.Transformer with causal and padding masks."""
    net, x, y = (
        nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        torch.randn(4, 7, 16),
        torch.randn(4, 5, 16),
    )
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.arange(7) >= torch.tensor([[7], [6], [4], [2]])

    def loss(_: int) -> Tensor:
        return F.mse_loss(net(x, y, tgt_mask=mask, src_key_padding_mask=padding), y)

    return trained(net, loss)


@program
def sparse_embedding() -> Any:
    """Gradients of an embedding are sparse: SparseAdam for it, Adam for the rest."""
    embed, head, ids = nn.Embedding(200, 8, sparse=True), nn.Linear(8, 200), words(16, 6, 200)
    optimizers = [torch.optim.SparseAdam(embed.parameters(), 0.05), torch.optim.Adam(head.parameters(), 0.05)]
    for _ in range(3):
        for each in optimizers:
            each.zero_grad()
        F.cross_entropy(head(embed(ids[:, 1:]).mean(1)), ids[:, 0]).backward()
        for each in optimizers:
            each.step()
    return [embed.weight.detach(), *(each.detach() for each in head.parameters())]


@program
def word_vectors() -> Any:
    """Bags of words, and negatives that are drawn."""
    context, target = nn.EmbeddingBag(100, 16, mode="mean"), nn.Embedding(100, 16, max_norm=1.0)
    ids = words(32, 5, 100)

    def loss(_: int) -> Tensor:
        bag = context(ids[:, 1:].contiguous())
        other = torch.multinomial(torch.ones(100), 32 * 4, replacement=True).view(32, 4)
        good = torch.einsum("bd,bd->b", bag, target(ids[:, 0]))
        bad = torch.einsum("bd,bnd->bn", bag, target(other))
        return -F.logsigmoid(good).mean() - F.logsigmoid(-bad).sum(1).mean()

    return trained(nn.ModuleList((context, target)), loss)


@program
def stft_loss() -> Any:
    """A filter is trained on the magnitudes of a short-time Fourier transform."""
    kernel, sound = nn.Parameter(0.1 * torch.randn(1, 1, 9)), torch.randn(2, 1, 400)

    def magnitudes(x: Tensor) -> Tensor:
        window = torch.hann_window(64)
        return torch.stft(x.squeeze(1), 64, window=window, return_complex=True).abs()

    def loss(_: int) -> Tensor:
        made, wanted = magnitudes(F.conv1d(sound, kernel, padding=4)), magnitudes(sound)
        return F.l1_loss((made + 1e-5).log(), (wanted + 1e-5).log())

    return trained([kernel], loss)


class LowRank(nn.Module):
    """The weight plus a product of low rank."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, columns) / 4), nn.Parameter(torch.zeros(rows, 4))

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the changed weight."""
        return weight + self.b @ self.a


@program
def lora() -> Any:
    """Adapters of low rank in a frozen GPT."""
    net, ids = Gpt().requires_grad_(False), words()
    layers = [each for each in net.modules() if isinstance(each, nn.Linear) and each.out_features == 96]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", LowRank(96, 32))
    adapters = [each for each in net.parameters() if each.requires_grad]
    return trained(adapters, lambda _: net(ids), torch.optim.AdamW)


@program
def mixture_of_experts() -> Any:
    """Each word goes to its two best experts, with a loss that balances them."""
    gate, experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    x, y = torch.randn(64, 16), torch.randn(64, 16)

    def loss(_: int) -> Tensor:
        chances = F.softmax(gate(x) + 0.1 * torch.randn(64, 4), -1)
        weights, chosen = chances.topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(x[row]) * weights[row, place].unsqueeze(1))
        share = F.one_hot(chosen, 4).float().mean((0, 1))
        return F.mse_loss(out, y) + (share * chances.mean(0)).sum()

    return trained(nn.ModuleList((gate, experts)), loss)


@program
def crf() -> Any:
    """A conditional random field: the forward algorithm in logarithms."""
    emit, move = nn.Linear(8, 5), nn.Parameter(torch.randn(5, 5))
    x, tags = torch.randn(4, 10, 8), torch.randint(0, 5, (4, 10))

    def loss(_: int) -> Tensor:
        scores = emit(x)
        alpha = scores[:, 0]
        for t in range(1, 10):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + move, 1) + scores[:, t]
        path = scores.gather(2, tags.unsqueeze(2)).sum((1, 2)) + move[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(alpha, 1) - path).mean()

    return trained([move, *emit.parameters()], loss)


@program
def state_space_layer() -> Any:
    """A diagonal state space with complex poles."""
    log_size, angle = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
    mix, x, y = nn.Parameter(torch.randn(8, dtype=torch.complex64)), torch.randn(4, 20), torch.randn(4, 20)

    def loss(_: int) -> Tensor:
        pole = torch.polar(torch.sigmoid(log_size), angle)
        state, outputs = torch.zeros(4, 8, dtype=torch.complex64), []
        for t in range(20):
            state = state * pole + x[:, t : t + 1]
            outputs.append((state * mix).sum(1).real)
        return F.mse_loss(torch.stack(outputs, 1), y)

    return trained([log_size, angle, mix], loss)


@program
def temporal_convolutions() -> Any:
    """Weight-normed, dilated convolutions over time; forecasts by quantiles."""
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 8, 3, dilation=2, padding=2)),
        nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 3, 3, dilation=4, padding=4)),
    )
    x, levels = torch.randn(8, 1, 24).cumsum(2), torch.tensor([0.1, 0.5, 0.9]).view(1, 3, 1)

    def loss(_: int) -> Tensor:
        off = x - net(x)
        return torch.maximum(levels * off, (levels - 1) * off).mean()

    return trained(net, loss)
