"""Both networks and both optimizers are given to Run."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(13)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(12)
    real_points = torch.randn(80, 2, generator=fixed) * torch.tensor([1.0, 0.2]) + 1
    loader = samebits.data.DataLoader(TensorDataset(real_points), batch_size=8, shuffle=True)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.99))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=0.01, betas=(0.5, 0.99))
    bce = nn.functional.binary_cross_entropy_with_logits

    networks = {"generator": generator, "discriminator": discriminator}
    optimizers = {"g_optimizer": g_optimizer, "d_optimizer": d_optimizer}
    with samebits.Run("runs/gan_discriminator", **networks, **optimizers) as run:
        for step, (real,) in run.steps(loader, epochs=3):
            fake = generator(torch.randn(len(real), 4))
            good, bad = discriminator(real), discriminator(fake.detach())
            d_loss = bce(good, torch.ones_like(good)) + bce(bad, torch.zeros_like(bad))
            d_optimizer.zero_grad()
            d_loss.backward()
            d_optimizer.step()

            verdict = discriminator(fake)
            g_loss = bce(verdict, torch.ones_like(verdict))
            g_optimizer.zero_grad()
            g_loss.backward()
            g_optimizer.step()
            run.log(loss=g_loss, d_loss=d_loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} generator {g_loss.item():.6f} discriminator {d_loss.item():.6f}")


if __name__ == "__main__":
    main()
