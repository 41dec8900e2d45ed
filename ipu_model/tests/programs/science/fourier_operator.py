"""A neural operator for the heat equation whose Fourier transforms are products with cosine and sine matrices."""

import math

import torch
from program_kit import check_learned, following, inferred, train
from torch import nn

import poptorch

GRID, MODES, WIDTH, STEPS = 32, 6, 12, 80


class SpectralConv(nn.Module):
    def __init__(self):
        super().__init__()
        angles = 2 * math.pi * torch.outer(torch.arange(GRID, dtype=torch.float64), torch.arange(MODES)) / GRID
        self.register_buffer("cos", torch.cos(angles).float(), persistent=False)
        self.register_buffer("sin", torch.sin(angles).float(), persistent=False)
        self.real, self.imag = (nn.Parameter(torch.randn(WIDTH, WIDTH, MODES) / WIDTH) for _ in range(2))
        self.local = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        re, im = x @ self.cos, -(x @ self.sin)
        out_re = torch.einsum("bim,iom->bom", re, self.real) - torch.einsum("bim,iom->bom", im, self.imag)
        out_im = torch.einsum("bim,iom->bom", re, self.imag) + torch.einsum("bim,iom->bom", im, self.real)
        return self.local(x) + (out_re @ self.cos.t() - out_im @ self.sin.t()) * (2 / GRID)


class FNO(nn.Module):
    def __init__(self):
        super().__init__()
        layers = SpectralConv(), nn.GELU(), SpectralConv(), nn.GELU()
        self.layers = nn.Sequential(nn.Conv1d(2, WIDTH, 1), *layers, nn.Conv1d(WIDTH, 1, 1), nn.Flatten(1))

    def forward(self, u, target=None):
        position = torch.linspace(0, 1, GRID).expand(u.shape[0], 1, GRID)
        out = self.layers(torch.cat([u.unsqueeze(1), position], dim=1))
        if target is None:
            return out
        relative = torch.linalg.norm(out - target, dim=1) / torch.linalg.norm(target, dim=1)
        return out, poptorch.identity_loss(relative, reduction="mean")


def batch(count):
    """Sums of sines, and what heat flow makes of them."""
    x, k = torch.arange(GRID) / GRID, torch.arange(1, 5).view(1, 4, 1)
    u = (torch.randn(count, 4, 1) / k * torch.sin(2 * math.pi * (k * x + torch.rand(count, 4, 1)))).sum(dim=1)
    frequencies = 2 * math.pi * torch.fft.rfftfreq(GRID, 1 / GRID)
    return u, torch.fft.irfft(torch.fft.rfft(u) * torch.exp(-0.01 * frequencies**2), n=GRID)


torch.manual_seed(0)
model = FNO()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
trainer = poptorch.trainingModel(model, poptorch.Options().deviceIterations(4), optimizer)
losses = train(trainer, (batch(4 * 16) for _ in range(STEPS)), after=following(scheduler, trainer))
check_learned(losses, 0.4)
trainer.detachFromDevice()
inferred(model, batch(16)[0])
