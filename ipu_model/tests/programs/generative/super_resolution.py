"""Super-resolution with sub-pixel convolution in half precision; the best weights by PSNR are kept and exported."""

import copy
import io
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


class SubPixelNet(nn.Module):
    def __init__(self, scale, width=16):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2),
            nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.PReLU(num_parameters=width),
            nn.Conv2d(width, scale**2, 3, padding=1),
            nn.PixelShuffle(scale),
        )
        nn.init.zeros_(self.body[-2].weight)
        nn.init.zeros_(self.body[-2].bias)

    def forward(self, low, high=None):
        up = F.interpolate(low, scale_factor=self.scale, mode="bilinear", align_corners=False)
        out = up + self.body(low)
        if high is None:
            return out
        charbonnier = torch.sqrt((out.float() - high.float()) ** 2 + 1e-6)
        return out, poptorch.identity_loss(charbonnier, reduction="mean")


def textures(count, scale, dtype, size=16):
    grid = torch.arange(size) / size
    frequency, phase = 3 + 4 * torch.rand(count, 2, 1, 1), 6 * torch.rand(count, 1, 1)
    angles = 2 * math.pi * (frequency[:, 0] * grid[:, None] + frequency[:, 1] * grid[None, :])
    high = (0.5 + 0.5 * torch.sin(angles + phase)).unsqueeze(1)
    return F.avg_pool2d(high, scale).to(dtype), high.to(dtype)


def psnr(a, b):
    return -10 * math.log10(F.mse_loss(a.float(), b.float()).item())


def main():
    args = SimpleNamespace(scale=2, epochs=8, precision="half")
    torch.manual_seed(0)
    dtype = getattr(torch, args.precision)
    model = SubPixelNet(args.scale).to(dtype)
    train = torch.utils.data.TensorDataset(*textures(256, args.scale, dtype))
    test_low, test_high = textures(16, args.scale, dtype)
    opts = poptorch.Options()
    opts.deviceIterations(4)
    loader = poptorch.DataLoader(opts, train, batch_size=8, shuffle=True)
    optimizer = poptorch.optim.Adam(
        model.parameters(), lr=2e-3, eps=1e-5, loss_scaling=1024.0, accum_type=torch.float16
    )
    training_model = poptorch.trainingModel(model, opts, optimizer)
    validation_model = poptorch.inferenceModel(model)
    baseline = psnr(F.interpolate(test_low.float(), scale_factor=args.scale, mode="bilinear"), test_high)
    best, best_psnr = None, 0.0
    for epoch in range(args.epochs):
        for low, high in loader:
            _, loss = training_model(low, high)
        training_model.detachFromDevice()
        quality = psnr(validation_model(test_low), test_high)
        validation_model.detachFromDevice()
        training_model.attachToDevice()
        print(f"epoch {epoch}: loss {loss.item():.4f}, PSNR {quality:.2f} dB (bilinear {baseline:.2f} dB)")
        if quality > best_psnr:
            best, best_psnr = copy.deepcopy(model.state_dict()), quality
    training_model.destroy()
    validation_model.destroy()

    stream = io.BytesIO()
    torch.save(best, stream)
    stream.seek(0)
    final = SubPixelNet(args.scale).to(dtype)
    final.load_state_dict(torch.load(stream))
    restored = psnr(poptorch.inferenceModel(final.eval())(test_low), test_high)
    assert abs(restored - best_psnr) < 0.05
    assert best_psnr > baseline + 0.5


if __name__ == "__main__":
    main()
