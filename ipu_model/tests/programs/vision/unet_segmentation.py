"""Binary segmentation with a U-Net over four IPUs: cross entropy plus Dice loss, skip connections across stages."""

import itertools

import torch
from program_kit import check_learned, train
from torch import nn

import poptorch

SIZE, STEPS, STAGES, WIDTH = 24, 14, ["encoder", "bottom", "decoder", "head"], 8


def double_conv(inputs, outputs):
    layers = []
    for n in (inputs, outputs):
        layers += [nn.Conv2d(n, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, c=WIDTH):
        super().__init__()
        self.inc, self.pool, self.out = double_conv(1, c), nn.MaxPool2d(2), nn.Conv2d(c, 2, 1)
        self.down1, self.down2 = double_conv(c, 2 * c), double_conv(2 * c, 4 * c)
        self.grow1, self.grow2 = (
            nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2),
            nn.ConvTranspose2d(2 * c, c, 2, stride=2),
        )
        self.up1, self.up2 = double_conv(4 * c, 2 * c), double_conv(2 * c, c)

    def forward(self, x, target=None):
        with poptorch.Block("encoder", ipu_id=0):
            x1 = self.inc(x)
        with poptorch.Block("bottom", ipu_id=1):
            x2 = self.down1(self.pool(x1))
            x3 = self.down2(self.pool(x2))
        with poptorch.Block("decoder", ipu_id=2):
            y = self.up1(torch.cat([x2, self.grow1(x3)], dim=1))
        with poptorch.Block("head", ipu_id=3):
            logits = self.out(self.up2(torch.cat([x1, self.grow2(y)], dim=1)))
            probabilities = torch.softmax(logits, dim=1)[:, 1]
            if target is None:
                return probabilities
            mask = target.to(probabilities.dtype)
            overlap = (2 * (probabilities * mask).sum(dim=(1, 2)) + 1) / ((probabilities + mask).sum(dim=(1, 2)) + 1)
            loss = nn.functional.cross_entropy(logits, target) + (1 - overlap).mean()
            return logits.argmax(dim=1), poptorch.identity_loss(loss, reduction="none")


class Discs(torch.utils.data.IterableDataset):
    """Noisy pictures of one disc each, without end."""

    def __iter__(self):
        rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        while True:
            (row, column), radius = 6 + (SIZE - 12) * torch.rand(2), 3 + 3 * torch.rand(())
            mask = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
            yield mask[None] + 0.3 * torch.randn(1, SIZE, SIZE), mask.long()


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
loader = poptorch.DataLoader(opts, Discs(), batch_size=2)
training = poptorch.trainingModel(model.train(), opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
check_learned(train(training, itertools.islice(loader, STEPS)), 0.6)
training.detachFromDevice()
opts = get_options().deviceIterations(4)
images, masks = next(iter(poptorch.DataLoader(opts, Discs(), batch_size=2)))
prediction = poptorch.inferenceModel(model.eval(), opts)(images) > 0.5
assert prediction.shape == masks.shape == (8, SIZE, SIZE)
assert 2 * (prediction & masks.bool()).sum() / (prediction.sum() + masks.sum()) > 0.7
