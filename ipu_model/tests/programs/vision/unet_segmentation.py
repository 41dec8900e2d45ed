"""Binary segmentation with a U-Net over four IPUs: cross entropy plus Dice loss, skip connections across stages."""

import itertools

import numpy as np
import torch
from program_kit import check_learned, train
from torch import nn

import poptorch

SIZE, STEPS, STAGES = 24, 14, ["encoder", "bottom", "decoder", "head"]


def double_conv(inputs, outputs):
    layers = []
    for n in (inputs, outputs):
        layers += [nn.Conv2d(n, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Up(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(2 * outputs, outputs, 2, stride=2), double_conv(2 * outputs, outputs)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, self.up(x)], dim=1))


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.inc, self.pool, self.out = double_conv(1, c), nn.MaxPool2d(2), nn.Conv2d(c, 2, 1)
        self.down1, self.down2 = double_conv(c, 2 * c), double_conv(2 * c, 4 * c)
        self.up1, self.up2 = Up(2 * c), Up(c)

    def forward(self, x, target=None):
        with poptorch.Block("encoder", ipu_id=0):
            x1 = self.inc(x)
        with poptorch.Block("bottom", ipu_id=1):
            x2 = self.down1(self.pool(x1))
            x3 = self.down2(self.pool(x2))
        with poptorch.Block("decoder", ipu_id=2):
            y = self.up1(x3, x2)
        with poptorch.Block("head", ipu_id=3):
            logits = self.out(self.up2(y, x1))
            probabilities = torch.softmax(logits, dim=1)[:, 1]
            if target is None:
                return probabilities
            mask = target.to(probabilities.dtype)
            overlap = (2 * (probabilities * mask).sum(dim=(1, 2)) + 1) / ((probabilities + mask).sum(dim=(1, 2)) + 1)
            loss = nn.functional.cross_entropy(logits, target) + (1 - overlap).mean()
            return logits.argmax(dim=1), poptorch.identity_loss(loss, reduction="none")


class Discs(torch.utils.data.IterableDataset):
    """Noisy pictures of one disc each, without end."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        generator = np.random.default_rng(self.seed)
        rows, columns = np.mgrid[:SIZE, :SIZE]
        while True:
            centre, radius = generator.uniform(6, SIZE - 6, 2), generator.uniform(3, 6)
            mask = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2
            image = mask + 0.3 * generator.standard_normal(mask.shape)
            yield torch.tensor(image[None], dtype=torch.float32), torch.tensor(mask, dtype=torch.long)


def get_options():
    opts = poptorch.Options()
    stages = [poptorch.Stage(name).ipu(i) for i, name in enumerate(STAGES)]
    opts.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    return opts


torch.manual_seed(0)
model = UNet()
opts = get_options()
opts.Training.gradientAccumulation(8)
opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
loader = poptorch.DataLoader(opts, Discs(seed=0), batch_size=2)
training_model = poptorch.trainingModel(model.train(), opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
check_learned(train(training_model, itertools.islice(loader, STEPS)), 0.6)
training_model.detachFromDevice()

opts = get_options().deviceIterations(4)
images, masks = next(iter(poptorch.DataLoader(opts, Discs(seed=9), batch_size=2)))
probabilities = poptorch.inferenceModel(model.eval(), opts)(images)
assert probabilities.shape == masks.shape == (8, SIZE, SIZE)
prediction = probabilities > 0.5
assert 2 * (prediction & masks.bool()).sum() / (prediction.sum() + masks.sum()) > 0.7
