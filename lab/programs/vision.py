"""Programs with images."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao import quantization

from lab.programs.registry import program, trained


def images(count: int = 16, channels: int = 3, size: int = 16) -> Tensor:
    """Returns normal noise as a batch of images."""
    return torch.randn(count, channels, size, size)


def labels(count: int = 16, classes: int = 10) -> Tensor:
    """Returns random classes."""
    return torch.randint(0, classes, (count,))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output."""
        return F.relu(x + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


def convnet(channels: int = 8, classes: int = 10) -> nn.Module:
    """Returns a small residual network."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        Residual(channels),
        nn.MaxPool2d(2),
        Residual(channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


@program
def resnet() -> Any:
    """SGD with momentum, weight decay and a cosine schedule; the running statistics count, too."""
    net, x, y = convnet(), images(), labels()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
    return [*net.state_dict().values(), net.eval()(x).detach()]


@program
def depthwise_with_label_smoothing() -> Any:
    """Depthwise convolutions, hardswish, and smoothed labels."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.Conv2d(8, 16, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16, 10),
    )
    x, y = images(), labels()
    return trained(net, lambda _: F.cross_entropy(net(x), y, label_smoothing=0.1), torch.optim.RMSprop)


@program
def unet_with_dice_loss() -> Any:
    """Downsampling, a transposed convolution, bilinear upsampling, and the Dice loss."""
    down, up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 8, 2, stride=2)
    end = nn.Conv2d(16, 1, 1)
    x, mask = images(4), (torch.rand(4, 1, 16, 16) > 0.5).float()

    def loss(_: int) -> Tensor:
        small = F.gelu(down(x))
        large = torch.cat((up(small), F.interpolate(small, scale_factor=2, mode="bilinear")), 1)
        found = end(large).sigmoid()
        overlap = 1 - 2 * (found * mask).sum() / (found.sum() + mask.sum())
        return overlap + F.binary_cross_entropy(found, mask)

    return trained(nn.ModuleList((down, up, end)), loss)


@program
def mixup_with_beta() -> Any:
    """Images and labels are mixed by draws of Beta(0.2, 0.2)."""
    net, x, y = convnet(), images(), F.one_hot(labels(), 10).float()

    def loss(_: int) -> Tensor:
        share = torch.distributions.Beta(torch.tensor(0.2), torch.tensor(0.2)).sample((len(x),))
        other = torch.randperm(len(x))
        mixed = torch.lerp(x[other], x, share.view(-1, 1, 1, 1))
        return F.cross_entropy(net(mixed), torch.lerp(y[other], y, share.view(-1, 1)))

    return trained(net, loss)


@program
def contrastive() -> Any:
    """SimCLR: two noisy, flipped views; similarities of normalised features."""
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 16)), images()

    def loss(_: int) -> Tensor:
        views = torch.cat((x + 0.1 * torch.randn_like(x), x.flip(3) + 0.1 * torch.randn_like(x)))
        features = F.normalize(net(views), dim=1)
        similar = features @ features.T / 0.5
        similar = similar.masked_fill(torch.eye(32, dtype=torch.bool), -1e9)
        return F.cross_entropy(similar, torch.arange(32).roll(16))

    return trained(net, loss, torch.optim.AdamW)


@program
def detection() -> Any:
    """A focal loss of classes and a smooth L1 loss of boxes, with a matching by their overlap."""
    head, features = nn.Conv2d(8, 5, 3, padding=1), torch.randn(4, 8, 8, 8)
    corners = torch.rand(4, 64, 2)
    boxes = torch.cat((corners, corners + 0.1 + torch.rand(4, 64, 2)), 2)

    def loss(_: int) -> Tensor:
        found = head(features).flatten(2).transpose(1, 2)
        low = torch.maximum(found[..., :2], boxes[..., :2])
        area = (torch.minimum(found[..., 2:4], boxes[..., 2:]) - low).clamp(min=0).prod(-1)
        target = (area > area.mean()).float()
        entropy = F.binary_cross_entropy_with_logits(found[..., 4], target, reduction="none")
        focal = ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()
        return focal + F.smooth_l1_loss(found[..., :4], boxes, beta=0.1)

    return trained(head, loss)


@program
def vision_transformer() -> Any:
    """Patches, a class token, attention, and stochastic depth."""
    patches, head = nn.Conv2d(3, 32, 4, stride=4), nn.Linear(32, 10)
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True), 2
    )
    token, x, y = nn.Parameter(torch.zeros(1, 1, 32)), images(), labels()
    parts = nn.ModuleList((patches, layers, head))

    def loss(_: int) -> Tensor:
        words = patches(x).flatten(2).transpose(1, 2)
        kept = torch.bernoulli(torch.full((16, 1, 1), 0.9)) / 0.9
        found = layers(torch.cat((token.expand(16, -1, -1), words * kept), 1))
        return F.cross_entropy(head(found[:, 0]), y)

    return trained([token, *parts.parameters()], loss, torch.optim.AdamW, clip=1.0)


@program
def style_transfer() -> Any:
    """The image is trained: Gram matrices of features, and total variation."""
    net, image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), nn.Parameter(images(1))

    def gram(x: Tensor) -> Tensor:
        flat = net(x).flatten(2)
        return flat @ flat.transpose(1, 2) / flat.shape[2]

    wanted = gram(images(1)).detach()

    def loss(_: int) -> Tensor:
        variation = image.diff(dim=2).abs().mean() + image.diff(dim=3).abs().mean()
        return F.mse_loss(gram(image), wanted) + 0.1 * variation

    return trained([image], loss)


@program
def distillation() -> Any:
    """A student learns a teacher's softened classes."""
    teacher, student, x = convnet(), convnet(4), images()

    def loss(_: int) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(teacher.eval()(x) / 3, 1)
        return F.kl_div(F.log_softmax(student(x) / 3, 1), wanted, reduction="batchmean") * 9

    return trained(student, loss)


@program
def averaged_weights() -> Any:
    """SWA and an exponential moving average of the weights; batch norm statistics are taken anew."""
    net, batches = convnet(), [(images(), labels()) for _ in range(3)]
    swa = torch.optim.swa_utils.AveragedModel(net)
    ema = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    schedule = torch.optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=2)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
        swa.update_parameters(net)
        ema.update_parameters(net)
    torch.optim.swa_utils.update_bn([x for x, _ in batches], swa)
    return [*swa.state_dict().values(), *ema.state_dict().values()]


@program
def autocast_bfloat16() -> Any:
    """Automatic mixed precision in bfloat16, channels last."""
    net, x, y = convnet(), images(), labels()
    x = x.to(memory_format=torch.channels_last)
    for each in net.parameters():
        if each.dim() == 4:
            each.data = each.data.to(memory_format=torch.channels_last)

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(x), y)

    return trained(net, loss, torch.optim.SGD)


@program
def group_norm_and_dropout() -> Any:
    """Group norm, SiLU, 2d dropout, average pooling, reflection padding, pixel shuffle."""
    net = nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Dropout2d(0.3),
        nn.AvgPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    x = images()
    return trained(net, lambda _: F.l1_loss(net(x), x), torch.optim.NAdam)


@program
def quantization_aware() -> Any:
    """Quantization-aware training of a small net."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    prepared = quantization.prepare_qat(net.train())
    x, y = images(), labels()
    made = trained(prepared, lambda _: F.cross_entropy(prepared(x), y), torch.optim.SGD)
    return [*made, *(each for each in prepared.state_dict().values() if isinstance(each, Tensor))]


@program
def optical_flow_warp() -> Any:
    """A flow field is trained through grid_sample."""
    flow, first, second = nn.Parameter(torch.zeros(2, 2, 16, 16)), images(2), images(2)
    grid = F.affine_grid(torch.eye(2, 3).expand(2, 2, 3), [2, 3, 16, 16], align_corners=False)

    def loss(_: int) -> Tensor:
        warped = F.grid_sample(first, grid + flow.permute(0, 2, 3, 1), align_corners=False)
        return F.huber_loss(warped, second) + flow.square().mean()

    return trained([flow], loss)


@program
def momentum_encoder() -> Any:
    """MoCo: a second encoder follows the first one; negatives come from a queue."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 16))
    slow, x, queue = copy.deepcopy(net), images(), F.normalize(torch.randn(64, 16), dim=1)

    def loss(step: int) -> Tensor:
        q = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for a, b in zip(slow.parameters(), net.parameters(), strict=True):
                a.mul_(0.9).add_(b, alpha=0.1)
            k = F.normalize(slow(x), dim=1)
        logits = torch.cat((torch.einsum("nc,nc->n", q, k).unsqueeze(1), q @ queue.clone().T), 1) / 0.07
        queue[16 * step : 16 * step + 16] = k
        return F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64))

    return [*trained(net, loss), queue]
