"""DCGAN with two training models; the weights of the frozen half are copied between the steps."""

import random
from types import SimpleNamespace

import torch
import torch.nn as nn

import poptorch


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.05)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


class DiscriminatorStep(nn.Module):
    def __init__(self, discriminator):
        super().__init__()
        self.discriminator, self.criterion = discriminator, nn.BCEWithLogitsLoss()

    def forward(self, real, fake):
        on_real, on_fake = self.discriminator(real), self.discriminator(fake)
        error = self.criterion(on_real, torch.full_like(on_real, 0.9))
        error = error + self.criterion(on_fake, torch.zeros_like(on_fake))
        return torch.sigmoid(on_real).mean(), torch.sigmoid(on_fake).mean(), poptorch.identity_loss(error, "mean")


class GeneratorStep(nn.Module):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.criterion = nn.BCEWithLogitsLoss()
        for parameter in self.discriminator.parameters():
            parameter.requires_grad = False

    def forward(self, noise):
        fake = self.generator(noise)
        score = self.discriminator(fake)
        return fake, self.criterion(score, torch.ones_like(score))


def main():
    opt = SimpleNamespace(nz=8, ngf=8, ndf=8, niter=60, manualSeed=999)
    random.seed(opt.manualSeed)
    torch.manual_seed(opt.manualSeed)

    net_g, net_d = Generator(opt.nz, opt.ngf), Discriminator(opt.ndf)
    frozen_d = Discriminator(opt.ndf)
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    frozen_d.load_state_dict(net_d.state_dict())

    opts = poptorch.Options()
    step_d, step_g = DiscriminatorStep(net_d), GeneratorStep(net_g, frozen_d)
    optimizer_d = poptorch.optim.Adam(step_d.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_g = poptorch.optim.Adam([p for p in step_g.parameters() if p.requires_grad], lr=1e-2, betas=(0.5, 0.999))
    train_d = poptorch.trainingModel(step_d, options=opts.clone(), optimizer=optimizer_d)
    train_g = poptorch.trainingModel(step_g, options=opts.clone(), optimizer=optimizer_g)

    pattern = torch.sign(torch.sin(torch.arange(16.0))).expand(16, 16)
    fake = torch.zeros(8, 1, 16, 16)
    errors, similarity = [], []
    for i in range(opt.niter):
        real = (pattern + 0.1 * torch.randn(8, 1, 16, 16)).clamp(-1, 1)
        d_x, d_gz, error_d = train_d(real, fake.detach())
        train_d.copyWeightsToHost()
        train_g.copyWeightsToHost() if i else None
        frozen_d.load_state_dict(net_d.state_dict())
        train_g.copyWeightsToDevice() if i else None
        fake, error_g = train_g(torch.randn(8, opt.nz, 1, 1))
        errors.append((error_d.item(), error_g.item()))
        similarity.append((fake * pattern).mean().item())
        if i % 10 == 9:
            print(
                f"[{i + 1}/{opt.niter}] Loss_D: {error_d:.4f} Loss_G: {error_g:.4f} "
                f"D(x): {d_x.item():.4f} D(G(z)): {d_gz.item():.4f} similarity {similarity[-1]:.3f}"
            )
    train_g.copyWeightsToHost()
    for own, copy in zip(net_d.parameters(), frozen_d.parameters()):
        torch.testing.assert_close(own.detach(), copy.detach())
    assert fake.shape == (8, 1, 16, 16)
    assert all(torch.isfinite(torch.tensor(pair)).all() for pair in errors)
    assert max(similarity[-5:]) > similarity[0] + 0.1, similarity


if __name__ == "__main__":
    main()
