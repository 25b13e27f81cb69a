"""Programs of reinforcement learning, graphs, physics, functional transforms, and of each optimizer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributions as D
from torch.func import functional_call, grad, hessian, jvp, vmap

from lab.programs.generative import mlp
from lab.programs.registry import program, trained


@program
def policy_gradient() -> Any:
    """REINFORCE in a small world, with returns that are discounted and normalised."""
    policy, state = mlp(4, 32, 3, act=nn.Tanh), torch.zeros(8, 4)

    def loss(_: int) -> Tensor:
        x, chances, rewards = state, [], []
        for _ in range(6):
            choice = D.Categorical(logits=policy(x))
            action = choice.sample()
            chances.append(choice.log_prob(action))
            x = 0.9 * x + F.one_hot(action, 4).float() + 0.1 * torch.randn(8, 4)
            rewards.append(-x.square().sum(1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        return -(torch.stack(chances) * returns.detach()).mean()

    return trained(policy, loss)


@program
def ppo() -> Any:
    """Clipped ratios of a normal policy, a value function, and its entropy."""
    actor, critic = mlp(6, 32, 2, act=nn.Tanh), mlp(6, 32, 1, act=nn.Tanh)
    log_scale, x, gain = nn.Parameter(torch.zeros(2)), torch.randn(64, 6), torch.randn(64)
    with torch.no_grad():
        old = D.Normal(actor(x), log_scale.exp())
        action = old.sample()
        before = old.log_prob(action).sum(1)

    def loss(_: int) -> Tensor:
        policy = D.Normal(actor(x), log_scale.exp())
        ratio = (policy.log_prob(action).sum(1) - before).exp()
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return F.mse_loss(critic(x).squeeze(1), gain) - clipped - 0.01 * policy.entropy().mean()

    return trained([log_scale, *actor.parameters(), *critic.parameters()], loss, clip=0.5)


@program
def deep_q_learning() -> Any:
    """A replay memory, a target net, and the Huber loss."""
    net = mlp(4, 32, 3, act=nn.ReLU)
    target, memory = copy.deepcopy(net), torch.randn(100, 10)

    def loss(_: int) -> Tensor:
        batch = memory[torch.randint(0, 100, (32,))]
        now, then, reward = batch[:, :4], batch[:, 4:8], batch[:, 8]
        action = (batch[:, 9:] * 3).long().clamp(0, 2)
        with torch.no_grad():
            wanted = reward + 0.9 * target(then).gather(1, net(then).argmax(1, keepdim=True)).squeeze(1)
            for a, b in zip(target.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.05)
        return F.smooth_l1_loss(net(now).gather(1, action).squeeze(1), wanted)

    return trained(net, loss)


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Returns features of 30 nodes, and both ends of 120 edges."""
    source, target = torch.randint(0, 30, (2, 120))
    return torch.randn(30, 8), source, target


@program
def graph_convolution() -> Any:
    """Messages are added with index_add, divided by degrees."""
    first, second, (x, source, target) = nn.Linear(8, 16), nn.Linear(16, 4), graph()
    y, degree = torch.randint(0, 4, (30,)), torch.bincount(target, minlength=30).clamp(min=1)

    def passed(h: Tensor) -> Tensor:
        return torch.zeros_like(h).index_add(0, target, h[source]) / degree.unsqueeze(1)

    def loss(_: int) -> Tensor:
        return F.cross_entropy(passed(second(F.relu(passed(first(x))))), y)

    return trained(nn.ModuleList((first, second)), loss)


@program
def graph_attention() -> Any:
    """A softmax over the edges of each node, by scatter_reduce and scatter_add."""
    head, score, (x, source, target) = nn.Linear(8, 8), nn.Linear(16, 1), graph()

    def loss(_: int) -> Tensor:
        h = head(x)
        e = F.leaky_relu(score(torch.cat((h[source], h[target]), 1)).squeeze(1), 0.2)
        top = torch.full((30,), -1e9).scatter_reduce(0, target, e.detach(), "amax")
        weight = (e - top[target]).exp()
        total = torch.zeros(30).scatter_add(0, target, weight)
        out = torch.zeros(30, 8).index_add(0, target, h[source] * (weight / total[target]).unsqueeze(1))
        return F.mse_loss(F.elu(out), x)

    return trained(nn.ModuleList((head, score)), loss)


@program
def sparse_graph() -> Any:
    """Messages are a product with a sparse matrix."""
    head, (x, source, target) = nn.Linear(8, 8), graph()
    matrix = torch.sparse_coo_tensor(torch.stack((target, source)), torch.rand(120), (30, 30)).coalesce()
    return trained(head, lambda _: F.mse_loss(torch.sparse.mm(matrix, head(x)), x))


@program
def metric_learning() -> Any:
    """Triplets, cosine embeddings, and margins."""
    net = mlp(8, 32, 8, act=nn.PReLU)
    a, b, c = torch.randn(3, 32, 8)

    def loss(_: int) -> Tensor:
        x, y, z = net(a), net(b), net(c)
        pairs = F.cosine_embedding_loss(x, y, torch.ones(32)) + F.margin_ranking_loss(
            F.cosine_similarity(x, y), F.cosine_similarity(x, z), torch.ones(32), 0.1
        )
        return F.triplet_margin_loss(x, y, z) + pairs + F.pairwise_distance(x, y).mean()

    return trained(net, loss, torch.optim.Adamax)


@program
def physics_informed() -> Any:
    """The heat equation: first and second derivatives of a net by its inputs."""
    net, points = mlp(2, 32, 32, 1, act=nn.Tanh), torch.rand(64, 2)

    def loss(_: int) -> Tensor:
        x = points.clone().requires_grad_()
        u = net(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        start = net(torch.cat((points[:, :1], torch.zeros(64, 1)), 1)) - torch.sin(torch.pi * points[:, :1])
        return (first[:, 1] - 0.1 * second[:, 0]).square().mean() + start.square().mean()

    return trained(net, loss)


@program
def radiance_field() -> Any:
    """NeRF: encoded points, and colours that are summed along rays."""
    net, rays = mlp(24, 32, 4, act=nn.ReLU), torch.randn(16, 3)
    depth, seen = torch.linspace(1, 3, 12), torch.rand(16, 3)

    def loss(_: int) -> Tensor:
        points = rays.unsqueeze(1) * (depth + 0.05 * torch.rand(16, 12)).unsqueeze(2)
        waves = (points.unsqueeze(-1) * 2.0 ** torch.arange(4)).flatten(2)
        colour, density = net(torch.cat((waves.sin(), waves.cos()), 2)).split((3, 1), 2)
        opaque = 1 - torch.exp(-F.softplus(density.squeeze(2)) * 0.2)
        weight = opaque * torch.cumprod(torch.cat((torch.ones(16, 1), 1 - opaque + 1e-7), 1), 1)[:, :-1]
        return F.mse_loss((weight.unsqueeze(2) * colour.sigmoid()).sum(1), seen)

    return trained(net, loss)


@program
def neural_ode() -> Any:
    """A net as the right side of an equation, by Runge and Kutta's steps; noise as in an SDE."""
    field, start, end = mlp(4, 32, 4, act=nn.Tanh), torch.randn(16, 4), torch.randn(16, 4)

    def loss(_: int) -> Tensor:
        x, h = start, 0.25
        for _ in range(4):
            a = field(x)
            b = field(x + h / 2 * a)
            c = field(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c)) + 0.01 * torch.randn_like(x)
        return F.mse_loss(x, end)

    return trained(field, loss)


@program
def private_gradients() -> Any:
    """Gradients of each sample by vmap, clipped, with noise added (DP-SGD)."""
    net, x, y = mlp(8, 16, 3), torch.randn(16, 8), torch.randint(0, 3, (16,))
    parameters = {name: each.detach() for name, each in net.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, values, (one.unsqueeze(0),)), label.unsqueeze(0))

    for _ in range(3):
        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        size = torch.stack([each.flatten(1).norm(dim=1) for each in found.values()]).norm(dim=0)
        scale = (1 / (size + 1e-6)).clamp(max=1)
        for name, each in found.items():
            total = torch.einsum("n,n...->...", scale, each) / 16
            parameters[name] = parameters[name] - 0.1 * (total + 0.01 * torch.randn_like(total))
    return [*parameters.values()]


@program
def meta_learning() -> Any:
    """MAML: a step inside of a step."""
    net, x, y = mlp(4, 16, 1, act=nn.Tanh), torch.randn(5, 10, 4), torch.randn(5, 10, 1)

    def loss(_: int) -> Tensor:
        total = torch.zeros(())
        for task in range(5):
            values: dict[str, Tensor] = {**dict(net.named_parameters())}
            inner = F.mse_loss(functional_call(net, values, (x[task, :5],)), y[task, :5])
            slopes = torch.autograd.grad(inner, [*values.values()], create_graph=True)
            values = {name: v - 0.1 * s for (name, v), s in zip(values.items(), slopes, strict=True)}
            total = total + F.mse_loss(functional_call(net, values, (x[task, 5:],)), y[task, 5:])
        return total

    return trained(net, loss)


@program
def derivatives_forward() -> Any:
    """Directional derivatives forward, and a Hessian."""
    net, x, direction = mlp(4, 16, 1, act=nn.Tanh), torch.randn(4), torch.randn(4)
    value, slope = jvp(lambda z: net(z).sum(), (x,), (direction,))[:2]
    return [value.detach(), slope.detach(), hessian(lambda z: net(z).sum())(x).detach()]


@program
def lbfgs() -> Any:
    """L-BFGS with a line search."""
    net, x, y = mlp(4, 8, 1), torch.randn(32, 4), torch.randn(32, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return [each.detach() for each in net.parameters()]


@program
def every_optimizer() -> Any:
    """Ten optimizers, one after the other."""
    x, y, made = torch.randn(32, 8), torch.randn(32, 4), []
    for optimizer in (
        torch.optim.Adafactor, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.ASGD,
        torch.optim.NAdam, torch.optim.RAdam, torch.optim.Rprop, partial(torch.optim.SGD, nesterov=True, momentum=0.9),
        partial(torch.optim.AdamW, amsgrad=True, foreach=True), partial(torch.optim.Adam, fused=True),
    ):  # fmt: skip
        net = mlp(8, 16, 4)
        made += trained(net, lambda _, net=net: F.mse_loss(net(x), y), optimizer)
    return made


@program
def sharpness_aware() -> Any:
    """SAM: a step up before each step down."""
    net, x, y = mlp(8, 32, 3), torch.randn(32, 8), torch.randint(0, 3, (32,))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        slopes = [each.grad.clone() for each in net.parameters() if each.grad is not None]
        size = torch.stack([each.norm() for each in slopes]).norm()
        with torch.no_grad():
            torch._foreach_add_([*net.parameters()], slopes, alpha=0.05 / float(size))
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_([*net.parameters()], slopes, alpha=0.05 / float(size))
        optimizer.step()
    return [each.detach() for each in net.parameters()]


@program
def scaled_gradients() -> Any:
    """GradScaler, and gradients that are accumulated over two batches."""
    net, x, y = mlp(8, 32, 3), torch.randn(2, 16, 8), torch.randint(0, 3, (2, 16))
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        for part in range(2):
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(net(x[part]), y[part]) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [torch.tensor(scaler.get_scale()), *(each.detach() for each in net.parameters())]


@program
def recommender() -> Any:
    """DLRM: embeddings of categories, products of all pairs, a BCE loss with weights."""
    tables = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
    below, above = mlp(4, 8), mlp(8 + 6, 16, 1)
    ids, x, y = torch.randint(0, 50, (3, 32, 2)), torch.randn(32, 4), torch.bernoulli(torch.full((32,), 0.3))

    def loss(_: int) -> Tensor:
        dense = below(x)
        rows = torch.stack([dense, *(table(i) for table, i in zip(tables, ids, strict=True))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, *torch.triu_indices(4, 4, 1)]
        logits = above(torch.cat((dense, pairs), 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, y, pos_weight=torch.tensor(2.0))

    return trained(nn.ModuleList((tables, below, above)), loss, torch.optim.Adagrad)


@program
def optimal_transport() -> Any:
    """Sinkhorn's iteration in logarithms, through which points move."""
    x, y = nn.Parameter(torch.randn(20, 3)), torch.randn(25, 3)

    def loss(_: int) -> Tensor:
        cost = (x.unsqueeze(1) - y).square().sum(2)
        f, g = torch.zeros(20), torch.zeros(25)
        for _ in range(5):
            f = -0.5 * torch.logsumexp((g - cost) / 0.5, 1)
            g = -0.5 * torch.logsumexp((f.unsqueeze(1) - cost) / 0.5, 0)
        return (torch.exp((f.unsqueeze(1) + g - cost) / 0.5) * cost).sum()

    return trained([x], loss)


@program
def point_cloud() -> Any:
    """PointNet with neighbours by topk, and the Chamfer distance."""
    net, end, x = mlp(6, 32, 16), mlp(16, 32, 30), torch.randn(4, 40, 3)

    def loss(_: int) -> Tensor:
        near = torch.cdist(x, x).topk(5, largest=False).indices
        around = torch.stack([one[i] for one, i in zip(x, near, strict=True)])
        edges = torch.cat((around - x.unsqueeze(2), x.unsqueeze(2).expand_as(around)), 3)
        made = end(net(edges).amax(2).amax(1)).view(4, 10, 3)
        apart = torch.cdist(made, x)
        return apart.amin(1).mean() + apart.amin(2).mean()

    return trained(nn.ModuleList((net, end)), loss)


@program
def clustering() -> Any:
    """k-means, then mixtures of normals by EM."""
    x, centers = torch.randn(200, 4), torch.randn(5, 4)
    for _ in range(3):
        hot = F.one_hot(torch.cdist(x, centers).argmin(1), 5).float()
        centers = hot.T @ x / hot.sum(0).clamp(min=1).unsqueeze(1)
    spread = torch.ones(5, 4)
    for _ in range(3):
        chance = F.softmax(D.Normal(centers, spread.sqrt()).log_prob(x.unsqueeze(1)).sum(2), 1)
        centers = chance.T @ x / chance.sum(0).unsqueeze(1)
        spread = torch.einsum("nk,nkd->kd", chance, (x.unsqueeze(1) - centers) ** 2) / chance.sum(
            0
        ).unsqueeze(1)
    return [centers, spread]


@program
def complex_network() -> Any:
    """Complex weights, a nonlinearity of sizes, and a quotient."""
    weights = [nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 8) for _ in range(2)]
    x, y = torch.randn(2, 32, 8, dtype=torch.complex64)

    def loss(_: int) -> Tensor:
        h = x @ weights[0]
        h = h * torch.relu(h.abs() - 0.1) / (h.abs() + 1e-3)
        return (h @ weights[1] - y).abs().square().mean()

    return trained(weights, loss)


@program
def gaussian_process() -> Any:
    """The marginal likelihood of a Gaussian process, by a Cholesky factor."""
    scale, x = nn.Parameter(torch.zeros(2)), torch.randn(30, 2)
    y = x[:, 0].sin()

    def loss(_: int) -> Tensor:
        kernel = scale[0].exp() * torch.exp(-torch.cdist(x, x).square() / 2 * scale[1].exp())
        return -D.MultivariateNormal(torch.zeros(30), kernel + 0.1 * torch.eye(30)).log_prob(y)

    return trained([scale], loss)


@program
def fourier_operator() -> Any:
    """FNO: low frequencies are multiplied by complex weights."""
    weight, x, y = nn.Parameter(torch.randn(5, dtype=torch.complex64)), torch.randn(8, 32), torch.randn(8, 32)

    def loss(_: int) -> Tensor:
        spectrum = F.pad(torch.fft.rfft(x)[:, :5] * weight, (0, 12))
        return F.mse_loss(torch.fft.irfft(spectrum, 32), y)

    return trained([weight], loss)


@program
def orthogonal_recurrence() -> Any:
    """A plain RNN that begins with an orthogonal matrix."""
    net, x, y = nn.RNN(4, 16, batch_first=True), torch.randn(8, 10, 4), torch.randn(8, 16)
    nn.init.orthogonal_(net.all_weights[0][1])
    return trained(net, lambda _: F.mse_loss(net(x)[0][:, -1], y), clip=1.0)
