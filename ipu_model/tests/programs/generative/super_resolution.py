"""Super-resolution with sub-pixel convolution in half precision; executors take turns, the best weights are kept."""

import copy
import io
import math

import torch
from program_kit import train
from torch import nn
from torch.nn import functional as F

import poptorch

SCALE, WIDTH, SIZE = 2, 16, 16


class SubPixelNet(nn.Module):
    def __init__(self):
        super().__init__()
        first, second = nn.Conv2d(1, WIDTH, 5, padding=2), nn.Conv2d(WIDTH, SCALE**2, 3, padding=1)
        self.body = nn.Sequential(first, nn.PReLU(num_parameters=WIDTH), second, nn.PixelShuffle(SCALE))
        nn.init.zeros_(second.weight)

    def forward(self, low, high=None):
        out = self.body(low) + F.interpolate(low, scale_factor=SCALE, mode="bilinear", align_corners=False)
        if high is None:
            return out
        return out, poptorch.identity_loss(torch.sqrt((out.float() - high.float()) ** 2 + 1e-6), reduction="mean")


def textures(count):
    frequency, grid = 3 + 4 * torch.rand(count, 2, 1, 1), 2 * math.pi * torch.arange(SIZE) / SIZE
    high = 0.5 + 0.5 * torch.sin(frequency[:, 0] * grid[:, None] + frequency[:, 1] * grid).unsqueeze(1)
    return F.avg_pool2d(high, SCALE).half(), high.half()


def psnr(a, b):
    return -10 * math.log10(F.mse_loss(a.float(), b.float()).item())


torch.manual_seed(0)
model, (low, high) = SubPixelNet().half(), textures(16)
opts = poptorch.Options().deviceIterations(4)
loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(*textures(256)), batch_size=8, shuffle=True)
optimizer = poptorch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-5, loss_scaling=1024.0, accum_type=torch.float16)
training, validation = poptorch.trainingModel(model, opts, optimizer), poptorch.inferenceModel(model)
best_psnr = 0.0
for _ in range(8):
    train(training, loader)
    training.detachFromDevice()
    quality = psnr(validation(low), high)
    validation.detachFromDevice()
    training.attachToDevice()
    if quality > best_psnr:
        best, best_psnr = copy.deepcopy(model.state_dict()), quality
assert best_psnr > psnr(F.interpolate(low.float(), scale_factor=SCALE, mode="bilinear"), high) + 0.5
stream = io.BytesIO()
torch.save(best, stream)
stream.seek(0)
final = SubPixelNet().half()
final.load_state_dict(torch.load(stream))
assert abs(psnr(poptorch.inferenceModel(final.eval())(low), high) - best_psnr) < 0.05
