"""Denoising diffusion: a small U-Net with time embeddings, a moving average, and the sampling loop."""

import math

import torch
from program_kit import check_learned
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import poptorch

STEPS, DIM, SIDE = 12, 16, 8
BETAS = torch.linspace(1e-4, 0.3, STEPS)
BARS = torch.cumprod(1 - BETAS, dim=0)


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 2 * outputs))
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.residual = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(self.norm1(self.conv1(x)) * (scale + 1) + shift)
        return F.silu(self.conv2(h)) + self.residual(x)


class DenoisingUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.final = nn.Conv2d(1, DIM, 3, padding=1), nn.Conv2d(DIM, 1, 1)
        self.down, self.middle, self.up = ResnetBlock(DIM, DIM), ResnetBlock(DIM, DIM), ResnetBlock(2 * DIM, DIM)
        self.shrink, self.grow = nn.Conv2d(DIM, DIM, 4, 2, 1), nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x, time):
        frequencies = torch.exp(torch.arange(DIM // 2) * -(math.log(10000) / (DIM // 2 - 1)))
        angles = time[:, None].float() * frequencies[None, :]
        t = torch.cat([angles.sin(), angles.cos()], dim=-1)
        skip = self.down(self.start(x), t)
        h = self.grow(self.middle(self.shrink(skip), t))
        return self.final(self.up(torch.cat([h, skip], dim=1), t))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = DenoisingUNet()
        self.register_buffer("bars", BARS)

    def forward(self, images, t):
        noise, bar = torch.randn_like(images), torch.index_select(self.bars, 0, t).reshape(-1, 1, 1, 1)
        return F.smooth_l1_loss(self.network(bar.sqrt() * images + (1 - bar).sqrt() * noise, t), noise)


torch.manual_seed(0)
diffusion, average, losses = Diffusion(), None, []
opts = poptorch.Options().randomSeed(42).deviceIterations(4).outputMode(poptorch.OutputMode.All)
training = poptorch.trainingModel(diffusion, opts, poptorch.optim.Adam(diffusion.parameters(), lr=3e-3))
pattern = torch.ones(1, 1, SIDE, SIDE)
pattern[:, :, :, SIDE // 2 :] = -1
for step in range(40):
    losses.append(
        training(pattern * torch.empty(64, 1, 1, 1).uniform_(0.8, 1.0), torch.randint(0, STEPS, (64,))).mean()
    )
    if step % 5 == 4:
        training.copyWeightsToHost()
        state = {name: value.clone() for name, value in diffusion.network.state_dict().items()}
        average = {name: 0.4 * average[name] + 0.6 * value for name, value in state.items()} if average else state
check_learned(losses, 0.6)
training.destroy()

network = DenoisingUNet()
network.load_state_dict(average)
denoise = poptorch.inferenceModel(network.eval())
images = torch.randn(4, 1, SIDE, SIDE)
for step in tqdm(reversed(range(STEPS)), total=STEPS, desc="sampling"):
    beta, predicted = BETAS[step], denoise(images, torch.full((4,), step))
    images = (images - beta / (1 - BARS[step]).sqrt() * predicted) / (1 - beta).sqrt()
    images = images + beta.sqrt() * torch.randn_like(images) if step else images
left, right = images.chunk(2, dim=3)
assert left.mean() > right.mean() + 0.6
