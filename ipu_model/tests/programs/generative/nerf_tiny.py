"""A neural radiance field of one coloured ball: positional encoding, volume rendering by a running product."""

import math
import time

import torch
import torch.nn as nn

import poptorch

SAMPLES, FREQUENCIES, RAYS = 16, 4, 64
NEAR, FAR = 1.0, 5.0


class Encoding(nn.Module):
    def __init__(self, frequencies):
        super().__init__()
        self.frequencies = 2.0 ** torch.arange(frequencies)

    def forward(self, x):
        angles = x.unsqueeze(-1) * self.frequencies.to(x.dtype)
        return torch.cat([x, torch.sin(angles).flatten(-2), torch.cos(angles).flatten(-2)], dim=-1)


class RadianceField(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.encoding = Encoding(FREQUENCIES)
        width = 3 * (1 + 2 * FREQUENCIES)
        self.trunk = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.density, self.colour = nn.Linear(hidden, 1), nn.Linear(hidden, 3)

    def forward(self, points):
        h = self.trunk(self.encoding(points))
        return torch.relu(self.density(h)).squeeze(-1), torch.sigmoid(self.colour(h))


class Renderer(nn.Module):
    def __init__(self, field):
        super().__init__()
        self.field = field
        self.register_buffer("depths", torch.linspace(NEAR, FAR, SAMPLES))

    def forward(self, origins, directions, target=None):
        points = origins[:, None, :] + directions[:, None, :] * self.depths[None, :, None]
        density, colour = self.field(points)
        step = (FAR - NEAR) / SAMPLES
        alpha = 1.0 - torch.exp(-density * step)
        ones = torch.ones_like(alpha[:, :1])
        log_transmittance = torch.cumsum(torch.log(torch.cat([ones, 1.0 - alpha + 1e-6], dim=1)), dim=1)
        weights = alpha * torch.exp(log_transmittance[:, :-1])
        rgb = (weights[..., None] * colour).sum(dim=1)
        depth = (weights * self.depths).sum(dim=1)
        if target is None:
            return rgb, depth
        return rgb, nn.functional.mse_loss(rgb, target)


def random_rays(count):
    angle = torch.rand(count) * 2 * math.pi
    origins = 3.0 * torch.stack([angle.cos(), angle.sin(), torch.zeros(count)], dim=1)
    aim = torch.randn(count, 3) * 0.6
    directions = nn.functional.normalize(aim - origins, dim=1)
    return origins, directions


def ball_colour(origins, directions, radius=1.0):
    along = -(origins * directions).sum(dim=1)
    closest = origins + along[:, None] * directions
    hit = (closest.norm(dim=1) < radius).float()
    return hit[:, None] * torch.tensor([0.9, 0.4, 0.1])


def main():
    torch.manual_seed(0)
    renderer = Renderer(RadianceField())
    opts = poptorch.Options()
    opts.deviceIterations(5)
    opts.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.Adam(renderer.parameters(), lr=5e-3)
    trainer = poptorch.trainingModel(renderer, opts, optimizer)
    origins, directions = random_rays(RAYS * 10)
    start = time.time()
    trainer.compile(origins, directions, ball_colour(origins, directions))
    print(f"compiled in {time.time() - start:.1f} s")
    losses = []
    for _ in range(40):
        origins, directions = random_rays(RAYS * 10)
        rgb, loss = trainer(origins, directions, ball_colour(origins, directions))
        losses.append(loss.item())
    print(f"mean squared error {losses[0]:.4f} -> {losses[-1]:.4f}, {rgb.shape[0]} colours returned")
    latency = trainer.getLatency()
    print(f"latency {latency}")

    view = poptorch.inferenceModel(renderer.eval())
    origins, directions = random_rays(RAYS)
    rgb, depth = view(origins, directions)
    psnr = -10 * torch.log10(nn.functional.mse_loss(rgb, ball_colour(origins, directions))).item()
    print(f"PSNR {psnr:.1f} dB")
    assert rgb.shape == (RAYS, 3)
    assert depth.shape == (RAYS,)
    assert len(latency) == 3
    assert losses[-1] < 0.5 * losses[0]
    assert psnr > 11


if __name__ == "__main__":
    main()
