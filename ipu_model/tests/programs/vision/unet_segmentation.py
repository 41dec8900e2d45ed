"""Binary segmentation with a U-Net over four IPUs: cross entropy plus Dice loss, skip connections across stages."""

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

import poptorch


class DoubleConv(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.ReLU(inplace=True),
        )


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x):
        return self.conv(self.pool(x))


class Up(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.conv = DoubleConv(2 * outputs, outputs)

    def forward(self, x, skip):
        x = self.up(x)
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, channels=8, pipelined=True):
        super().__init__()
        self.inc = DoubleConv(1, channels)
        self.down1 = Down(channels, 2 * channels)
        self.down2 = Down(2 * channels, 4 * channels)
        self.up1 = Up(4 * channels, 2 * channels)
        self.up2 = Up(2 * channels, channels)
        self.out = nn.Conv2d(channels, 2, 1)

    def forward(self, x, target=None):
        with poptorch.Block("encoder", ipu_id=0):
            x1 = self.inc(x)
        with poptorch.Block("bottom", ipu_id=1):
            x2 = self.down1(x1)
            x3 = self.down2(x2)
        with poptorch.Block("decoder", ipu_id=2):
            y = self.up1(x3, x2)
        with poptorch.Block("head", ipu_id=3):
            y = self.up2(y, x1)
            logits = self.out(y)
            if target is None:
                return torch.softmax(logits, dim=1)[:, 1]
            return logits.argmax(dim=1), self.loss(logits, target)

    @staticmethod
    def loss(logits, target):
        ce = nn.functional.cross_entropy(logits, target)
        probabilities = torch.softmax(logits, dim=1)[:, 1]
        mask = target.to(probabilities.dtype)
        intersection = (probabilities * mask).sum(dim=(1, 2))
        dice = 1 - (2 * intersection + 1) / (probabilities.sum(dim=(1, 2)) + mask.sum(dim=(1, 2)) + 1)
        return poptorch.identity_loss(ce + dice.mean(), reduction="none")


class Discs(torch.utils.data.IterableDataset):
    """Noisy pictures of one disc each, without end."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __iter__(self):
        generator = np.random.default_rng(self.seed)
        rows, columns = np.mgrid[: self.size, : self.size]
        for _ in range(400):
            centre, radius = generator.uniform(6, self.size - 6, 2), generator.uniform(3, 6)
            mask = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2
            image = mask + 0.3 * generator.standard_normal(mask.shape)
            yield torch.tensor(image[None], dtype=torch.float32), torch.tensor(mask, dtype=torch.long)


def get_options(args, training):
    opts = poptorch.Options()
    stages = [poptorch.Stage(name).ipu(i) for i, name in enumerate(["encoder", "bottom", "decoder", "head"])]
    opts.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    if training:
        opts.Training.gradientAccumulation(args.gradient_accumulation)
        opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    else:
        opts.deviceIterations(4)
    return opts


def dice_score(prediction, target):
    return (2 * (prediction & target).sum() / (prediction.sum() + target.sum())).item()


def main():
    args = SimpleNamespace(size=24, gradient_accumulation=8, steps=14)
    torch.manual_seed(0)

    model = UNet()
    opts = get_options(args, training=True)
    loader = poptorch.DataLoader(opts, Discs(args.size, seed=0), batch_size=2)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=5e-3)
    training_model = poptorch.trainingModel(model.train(), opts, optimizer)
    losses = []
    for step, (images, masks) in enumerate(loader):
        if step == args.steps:
            break
        prediction, loss = training_model(images, masks)
        losses.append(loss.item())
        print(f"{step}: loss {loss.item():.3f}, prediction {tuple(prediction.shape)}")
    training_model.detachFromDevice()

    opts = get_options(args, training=False)
    inference_model = poptorch.inferenceModel(model.eval(), opts)
    images, masks = next(iter(poptorch.DataLoader(opts, Discs(args.size, seed=9), batch_size=2)))
    probabilities = inference_model(images)
    assert probabilities.shape == masks.shape == (8, args.size, args.size)
    score = dice_score(probabilities > 0.5, masks.bool())
    print(f"Dice score {score:.3f}")
    assert losses[-1] < 0.6 * losses[0], losses
    assert score > 0.7


if __name__ == "__main__":
    main()
