"""Denoising diffusion: a small network with time embeddings, a moving average of weights, and the sampling loop."""

import torch
from program_kit import Over, check_learned
from torch import nn
from tqdm import tqdm

import poptorch

STEPS, DIM, SIDE = 12, 16, 8
BETAS = torch.linspace(1e-4, 0.3, STEPS)
BARS = torch.cumprod(1 - BETAS, dim=0)


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 2 * outputs))
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs)
        self.residual = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        return nn.functional.silu(self.norm(self.conv(x)) * (scale + 1) + shift) + self.residual(x)


class DenoisingUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.final = nn.Conv2d(1, DIM, 3, padding=1), nn.Conv2d(DIM, 1, 1)
        self.down, self.middle, self.up = ResnetBlock(DIM, DIM), ResnetBlock(DIM, DIM), ResnetBlock(2 * DIM, DIM)
        self.shrink, self.grow = nn.Conv2d(DIM, DIM, 4, 2, 1), nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x, time):
        angles = time[:, None].float() * torch.exp(-torch.arange(DIM // 2.0))[None, :]
        t = torch.cat([angles.sin(), angles.cos()], dim=-1)
        skip = self.down(self.start(x), t)
        return self.final(self.up(torch.cat([self.grow(self.middle(self.shrink(skip), t)), skip], dim=1), t))


class Diffusion(Over):
    def __init__(self, network):
        super().__init__(network)
        self.register_buffer("bars", BARS)

    def forward(self, images, t):
        noise, bar = torch.randn_like(images), torch.index_select(self.bars, 0, t).reshape(-1, 1, 1, 1)
        return nn.functional.smooth_l1_loss(self.network(bar.sqrt() * images + (1 - bar).sqrt() * noise, t), noise)


torch.manual_seed(0)
network, averaged, losses = DenoisingUNet(), DenoisingUNet(), []
opts = poptorch.Options().randomSeed(42).deviceIterations(4).outputMode(poptorch.OutputMode.All)
training = poptorch.trainingModel(Diffusion(network), opts, poptorch.optim.Adam(network.parameters(), lr=3e-3))
pattern = torch.ones(64, 1, SIDE, SIDE)
pattern[:, :, :, SIDE // 2 :] = -1
for step in range(40):
    losses.append(training(pattern, torch.randint(0, STEPS, (64,))).mean().item())
    if step % 5 == 4:
        training.copyWeightsToHost()
        own = averaged.state_dict()
        averaged.load_state_dict({name: own[name].lerp(value, 0.7) for name, value in network.state_dict().items()})
check_learned(losses, 0.6)
training.destroy()
denoise, images = poptorch.inferenceModel(averaged.eval()), torch.randn(4, 1, SIDE, SIDE)
for step in tqdm(reversed(range(STEPS)), total=STEPS, desc="sampling"):
    beta, predicted = BETAS[step], denoise(images, torch.full((4,), step))
    images = (images - beta / (1 - BARS[step]).sqrt() * predicted) / (1 - beta).sqrt()
    images = images + beta.sqrt() * torch.randn_like(images) if step else images
assert (images * pattern[:4]).mean() > 0.3
