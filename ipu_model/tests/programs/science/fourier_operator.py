"""A neural operator for the heat equation whose Fourier transforms are products with cosine and sine matrices."""

import math

import torch
import torch.nn as nn

import poptorch

GRID, MODES, WIDTH = 32, 6, 12


def fourier_matrices(grid, modes):
    angles = 2 * math.pi * torch.outer(torch.arange(grid, dtype=torch.float64), torch.arange(modes)) / grid
    return torch.cos(angles).float(), torch.sin(angles).float()


class SpectralConv(nn.Module):
    """The complex weights are two real parameters: the device has no complex numbers."""

    def __init__(self):
        super().__init__()
        cos, sin = fourier_matrices(GRID, MODES)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        scale = 1 / WIDTH
        self.real = nn.Parameter(scale * torch.randn(WIDTH, WIDTH, MODES))
        self.imag = nn.Parameter(scale * torch.randn(WIDTH, WIDTH, MODES))

    def forward(self, x):
        re, im = x @ self.cos, -(x @ self.sin)
        out_re = torch.einsum("bim,iom->bom", re, self.real) - torch.einsum("bim,iom->bom", im, self.imag)
        out_im = torch.einsum("bim,iom->bom", re, self.imag) + torch.einsum("bim,iom->bom", im, self.real)
        return (out_re @ self.cos.t() - out_im @ self.sin.t()) * (2 / GRID)


class FNO(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.lift = nn.Conv1d(2, WIDTH, 1)
        self.spectral = nn.ModuleList(SpectralConv() for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(layers))
        self.drop = nn.Sequential(nn.Conv1d(WIDTH, 16, 1), nn.GELU(), nn.Conv1d(16, 1, 1))

    def forward(self, u, target=None):
        position = torch.linspace(0, 1, GRID).expand(u.shape[0], 1, GRID)
        x = self.lift(torch.cat([u.unsqueeze(1), position], dim=1))
        for spectral, local in zip(self.spectral, self.local):
            x = nn.functional.gelu(spectral(x) + local(x))
        out = self.drop(x).squeeze(1)
        if target is None:
            return out
        relative = torch.linalg.norm(out - target, dim=1) / torch.linalg.norm(target, dim=1)
        return out, poptorch.identity_loss(relative, reduction="mean")


def heat(u, time=0.01):
    frequencies = 2 * math.pi * torch.fft.rfftfreq(GRID, 1 / GRID)
    return torch.fft.irfft(torch.fft.rfft(u) * torch.exp(-time * frequencies**2), n=GRID)


def initial_conditions(count):
    x = torch.arange(GRID) / GRID
    k = torch.arange(1, 5).view(1, 4, 1)
    amplitude, phase = torch.randn(count, 4, 1) / k, 2 * math.pi * torch.rand(count, 4, 1)
    return (amplitude * torch.sin(2 * math.pi * k * x + phase)).sum(dim=1)


def main():
    torch.manual_seed(0)
    model = FNO()
    opts = poptorch.Options()
    opts.deviceIterations(4)
    opts.Precision.enableStochasticRounding(False)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
    trainer = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for _ in range(80):
        u = initial_conditions(4 * 16)
        _, loss = trainer(u, heat(u))
        losses.append(loss.item())
        scheduler.step()
        trainer.setOptimizer(optimizer)
    print(f"relative error {losses[0]:.3f} -> {losses[-1]:.3f}")
    trainer.detachFromDevice()
    u = initial_conditions(16)
    operator = poptorch.inferenceModel(model)
    error = ((operator(u) - heat(u)).norm(dim=1) / heat(u).norm(dim=1)).mean().item()
    print(f"relative error on new initial conditions {error:.3f}")
    assert losses[-1] < 0.4 * losses[0]
    assert error < 0.4


if __name__ == "__main__":
    main()
