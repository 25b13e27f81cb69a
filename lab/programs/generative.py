"""Generative and probabilistic programs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributions as D

from lab.programs.registry import program, trained


def mlp(*sizes: int, act: type[nn.Module] = nn.SiLU) -> nn.Sequential:
    """Returns linear layers with activations between."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


@program
def vae() -> Any:
    """A variational autoencoder of binary images."""
    encoder, decoder, x = mlp(64, 32, 16), mlp(8, 32, 64), torch.bernoulli(torch.full((32, 64), 0.4))

    def loss(_: int) -> Tensor:
        mean, log_scale = encoder(x).chunk(2, 1)
        posterior = D.Normal(mean, log_scale.exp())
        made = decoder(posterior.rsample())
        bound = F.binary_cross_entropy_with_logits(made, x, reduction="sum")
        return bound + D.kl_divergence(posterior, D.Normal(0.0, 1.0)).sum()

    return trained(nn.ModuleList((encoder, decoder)), loss)


@program
def gan_with_spectral_norm() -> Any:
    """A hinge loss; the critic's weights are divided by their largest singular value."""
    maker, critic = mlp(8, 32, 16), mlp(16, 32, 1, act=nn.LeakyReLU)
    for layer in [*critic][::2]:
        nn.utils.parametrizations.spectral_norm(layer)
    both = [torch.optim.Adam(each.parameters(), 2e-3, betas=(0.0, 0.9)) for each in (maker, critic)]
    real = torch.randn(32, 16)
    for _ in range(3):
        both[1].zero_grad()
        fake = maker(torch.randn(32, 8)).detach()
        (F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()).backward()
        both[1].step()
        both[0].zero_grad()
        (-critic(maker(torch.randn(32, 8))).mean()).backward()
        both[0].step()
    return [each.detach() for net in (maker, critic) for each in net.parameters()]


@program
def wasserstein_gan() -> Any:
    """The gradient's norm is penalised: a gradient of a gradient."""
    critic, real, fake = mlp(16, 32, 1), torch.randn(32, 16), torch.randn(32, 16)

    def loss(_: int) -> Tensor:
        between = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return trained(critic, loss)


@program
def diffusion() -> Any:
    """Noise is predicted at random times, whose sines are an input; then some steps are sampled."""
    net, x = mlp(16 + 8, 64, 16), torch.randn(64, 16)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)

    def noise(x: Tensor, t: Tensor) -> Tensor:
        angles = t.unsqueeze(1) * torch.exp(-torch.arange(4) * math.log(1e4) / 4)
        return net(torch.cat((x, angles.sin(), angles.cos()), 1))

    def loss(_: int) -> Tensor:
        t, eps = torch.randint(0, 50, (64,)), torch.randn(64, 16)
        part = kept[t].unsqueeze(1)
        return F.mse_loss(noise(part.sqrt() * x + (1 - part).sqrt() * eps, t), eps)

    made, y = trained(net, loss), torch.randn(8, 16)
    with torch.no_grad():
        for t in range(49, 39, -1):
            y = y - (1 - kept[t]).rsqrt() * 0.02 * noise(y, torch.full((8,), t)) + 0.1 * torch.randn_like(y)
    return [*made, y]


@program
def normalizing_flow() -> Any:
    """Coupling layers, trained by exact likelihood."""
    nets, x = nn.ModuleList(mlp(4, 32, 8, act=nn.Tanh) for _ in range(3)), torch.randn(64, 8)

    def loss(_: int) -> Tensor:
        z, volume = x, torch.zeros(64)
        for net in nets:
            a, b = z.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            z = torch.cat((b * torch.tanh(scale).exp() + shift, a), 1)
            volume = volume + torch.tanh(scale).sum(1)
        return -(D.Independent(D.Normal(torch.zeros(8), torch.ones(8)), 1).log_prob(z) + volume).mean()

    return trained(nets, loss)


@program
def vector_quantized() -> Any:
    """VQ-VAE: the nearest code, a straight-through gradient, and codes that follow by averages."""
    encoder, decoder, codes = mlp(16, 32, 8), mlp(8, 32, 16), torch.randn(20, 8)
    x = torch.randn(64, 16)

    def loss(_: int) -> Tensor:
        z = encoder(x)
        nearest = torch.cdist(z, codes).argmin(1)
        chosen = codes[nearest]
        with torch.no_grad():
            hot = F.one_hot(nearest, 20).float()
            codes.lerp_((hot.T @ z) / hot.sum(0).clamp(min=1).unsqueeze(1), 0.1)
        made = decoder(z + (chosen - z).detach())
        return F.mse_loss(made, x) + 0.25 * F.mse_loss(z, chosen)

    return [*trained(nn.ModuleList((encoder, decoder)), loss), codes]


@program
def topic_model() -> Any:
    """Topics of documents are drawn from a Dirichlet distribution, with gradients of the draws."""
    net, topics = mlp(30, 16, 4, act=nn.Softplus), nn.Parameter(torch.randn(4, 30))
    counts = torch.poisson(torch.rand(16, 30) * 3)

    def loss(_: int) -> Tensor:
        share = D.Dirichlet(F.softplus(net(counts)) + 0.1).rsample()
        chances = (share @ F.softmax(topics, 1) + 1e-8).log()
        return -(counts * chances).sum(1).mean()

    return trained([topics, *net.parameters()], loss)


@program
def gamma_posterior() -> Any:
    """Variational inference of rates: Gamma and Beta posteriors, their densities and divergences."""
    a, b = (nn.Parameter(torch.randn(5)) for _ in range(2))
    counts, hits = D.Poisson(torch.tensor([1.0, 2, 3, 4, 5])).sample((20,)), torch.tensor([1.0, 3, 5, 7, 9])

    def loss(_: int) -> Tensor:
        rate, chance = D.Gamma(F.softplus(a), F.softplus(b)), D.Beta(F.softplus(a), F.softplus(b))
        r, p = rate.rsample(), chance.rsample()
        seen = D.Poisson(r).log_prob(counts).sum() + D.Binomial(10, p).log_prob(hits).sum()
        prior = (
            D.kl_divergence(rate, D.Gamma(1.0, 1.0)).sum() + D.kl_divergence(chance, D.Beta(1.0, 1.0)).sum()
        )
        return prior - seen

    return trained([a, b], loss)


@program
def energy_model() -> Any:
    """Negatives come from Langevin dynamics."""
    energy, x = mlp(8, 32, 1), torch.randn(32, 8)

    def loss(_: int) -> Tensor:
        y = torch.randn(32, 8).requires_grad_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(energy(y).sum(), y)
            y = (y - 0.1 * slope + 0.1 * torch.randn_like(y)).detach().requires_grad_()
        return energy(x).mean() - energy(y.detach()).mean()

    return trained(energy, loss)


@program
def mixture_density() -> Any:
    """A net gives the weights, means and scales of a mixture."""
    net, x = mlp(2, 32, 9), torch.randn(64, 2)
    y = x[:, 0].sin() + 0.1 * torch.randn(64)

    def loss(_: int) -> Tensor:
        weight, mean, scale = net(x).chunk(3, 1)
        parts = D.Normal(mean, F.softplus(scale) + 1e-3)
        return -D.MixtureSameFamily(D.Categorical(logits=weight), parts).log_prob(y).mean()

    return trained(net, loss)


@program
def gumbel_softmax_autoencoder() -> Any:
    """Discrete codes by Gumbel-softmax, student-t and Laplace noise."""
    encoder, decoder, x = mlp(16, 32, 12), mlp(12, 32, 16), torch.randn(32, 16)

    def loss(_: int) -> Tensor:
        code = F.gumbel_softmax(encoder(x).unflatten(1, (3, 4)), tau=0.7, hard=True).flatten(1)
        noise = D.Laplace(0.0, 0.1).rsample((32, 16)) + 0.1 * D.StudentT(torch.tensor(5.0)).sample((32, 16))
        return F.mse_loss(decoder(code), x + noise)

    return trained(nn.ModuleList((encoder, decoder)), loss)
