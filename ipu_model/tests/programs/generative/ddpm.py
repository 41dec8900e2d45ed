"""Denoising diffusion: a small U-Net with time embeddings, a moving average, and the sampling loop."""

import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

import poptorch


class SinusoidalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        frequencies = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        angles = t[:, None].float() * frequencies[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs, time_dim, groups=4):
        super().__init__()
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 2 * outputs))
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)
        self.residual = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(self.norm1(self.conv1(x)) * (scale + 1) + shift)
        return F.silu(self.norm2(self.conv2(h))) + self.residual(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=2, dim_head=8):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Conv2d(dim, 3 * heads * dim_head, 1, bias=False)
        self.to_out = nn.Conv2d(heads * dim_head, dim, 1)

    def forward(self, x):
        batch, _, height, width = x.shape
        q, k, v = (part.reshape(batch, self.heads, -1, height * width) for part in self.to_qkv(x).chunk(3, dim=1))
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(batch, -1, height, width))


class DenoisingUNet(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.time_mlp = nn.Sequential(
            SinusoidalEmbedding(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 4 * dim)
        )
        self.start = nn.Conv2d(1, dim, 3, padding=1)
        self.down = ResnetBlock(dim, dim, 4 * dim)
        self.shrink = nn.Conv2d(dim, 2 * dim, 4, 2, 1)
        self.middle, self.attention = ResnetBlock(2 * dim, 2 * dim, 4 * dim), LinearAttention(2 * dim)
        self.grow = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(2 * dim, dim, 3, padding=1))
        self.up = ResnetBlock(2 * dim, dim, 4 * dim)
        self.final = nn.Conv2d(dim, 1, 1)

    def forward(self, x, time):
        t = self.time_mlp(time)
        skip = self.down(self.start(x), t)
        h = self.attention(self.middle(self.shrink(skip), t))
        return self.final(self.up(torch.cat([self.grow(h), skip], dim=1), t))


class GaussianDiffusion(nn.Module):
    """Training: draws time steps and noise on the device."""

    def __init__(self, network, steps):
        super().__init__()
        self.network, self.steps = network, steps
        betas = torch.linspace(1e-4, 0.2, steps)
        alphas_cumprod = torch.cumprod(1 - betas, dim=0)
        self.register_buffer("sqrt_alphas_cumprod", alphas_cumprod.sqrt())
        self.register_buffer("sqrt_one_minus", (1 - alphas_cumprod).sqrt())
        self.betas, self.alphas_cumprod = betas, alphas_cumprod

    def extract(self, values, t):
        return torch.index_select(values, 0, t).reshape(-1, 1, 1, 1)

    def forward(self, images, t):
        noise = torch.randn_like(images)
        noisy = self.extract(self.sqrt_alphas_cumprod, t) * images + self.extract(self.sqrt_one_minus, t) * noise
        predicted = self.network(noisy, t)
        return F.smooth_l1_loss(predicted, noise)


class EMA:
    def __init__(self, beta):
        self.beta, self.shadow = beta, None

    def update(self, state):
        if self.shadow is None:
            self.shadow = {name: value.clone() for name, value in state.items()}
        for name, value in state.items():
            self.shadow[name] = self.beta * self.shadow[name] + (1 - self.beta) * value


@torch.no_grad()
def sample(model, diffusion, shape):
    images = torch.randn(shape)
    for step in tqdm(reversed(range(diffusion.steps)), total=diffusion.steps, desc="sampling"):
        t = torch.full((shape[0],), step, dtype=torch.long)
        predicted = model(images, t)
        beta, bar = diffusion.betas[step], diffusion.alphas_cumprod[step]
        images = (images - beta / (1 - bar).sqrt() * predicted) / (1 - beta).sqrt()
        if step:
            images = images + beta.sqrt() * torch.randn_like(images)
    return images


def main():
    args = SimpleNamespace(image_size=8, timesteps=20, batch_size=8, device_iterations=4, iterations=50)
    torch.manual_seed(0)

    diffusion = GaussianDiffusion(DenoisingUNet(), args.timesteps)
    opts = poptorch.Options().randomSeed(42)
    opts.deviceIterations(args.device_iterations)
    opts.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.Adam(diffusion.parameters(), lr=2e-3)
    training_model = poptorch.trainingModel(diffusion, opts, optimizer)
    count = args.batch_size * args.device_iterations
    ema, losses = EMA(0.6), []
    for step in range(args.iterations):
        images = torch.ones(count, 1, args.image_size, args.image_size)
        images[:, :, :, args.image_size // 2 :] = -1
        images = images * torch.empty(count, 1, 1, 1).uniform_(0.8, 1.0)
        t = torch.randint(0, args.timesteps, (count,)).long()
        loss = training_model(images, t)
        losses.append(loss.mean().item())
        if step % 5 == 4:
            training_model.copyWeightsToHost()
            ema.update(diffusion.network.state_dict())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    training_model.destroy()

    network = DenoisingUNet()
    network.load_state_dict(ema.shadow)
    inference_model = poptorch.inferenceModel(network.eval())
    images = sample(inference_model, diffusion, (4, 1, args.image_size, args.image_size))
    left, right = images.chunk(2, dim=3)
    print(f"sampled: left {left.mean():.2f}, right {right.mean():.2f}")
    assert loss.shape == (args.device_iterations,)
    assert losses[-1] < 0.5 * losses[0]
    assert left.mean() > right.mean() + 0.6


if __name__ == "__main__":
    main()
