"""Train a small residual CNN in half precision on replicated IPUs with 8-bit input, then validate it."""

import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from program_kit import Items, train

import popart
import poptorch

EPOCHS, CLASSES = 6, 4


def corner(index, generator):
    """An image in unsigned bytes: each class is brighter in its own corner."""
    label = int(torch.randint(CLASSES, (), generator=generator))
    image = torch.randint(120, (3, 16, 16), generator=generator, dtype=torch.uint8)
    row, column = divmod(label, 2)
    image[:, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] += 100
    return image, label


class NormalizeInputModel(nn.Module):
    """Casts and normalises the bytes on the IPU, so that a quarter of the data crosses the PCIe link."""

    def __init__(self, model, mean, std, output_cast=None):
        super().__init__()
        self.model = model
        self.output_cast = output_cast
        self.register_buffer("mul", (1.0 / (255.0 * std)).view(-1, 1, 1))
        self.register_buffer("sub", (mean / std).view(-1, 1, 1))

    def forward(self, img):
        if self.output_cast == "full":
            img = img.float()
        elif self.output_cast == "half":
            img = img.half()
        img = torch.mul(img, self.mul)
        img = torch.sub(img, self.sub)
        return self.model(img)


class ResidualBlock(nn.Module):
    def __init__(self, channels, groups=4):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, channels)

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + x)


class SmallResNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(ResidualBlock(16), ResidualBlock(16))
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.pool(self.blocks(self.stem(x)))
        return self.head(torch.flatten(x, 1))


class LabelSmoothing(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        log_probs = F.log_softmax(logits.float(), dim=-1)
        nll = F.nll_loss(log_probs, target)
        uniform = -log_probs.mean()
        return poptorch.identity_loss((1.0 - self.smoothing) * nll + self.smoothing * uniform, reduction="none")


class TrainingModelWithLoss(nn.Module):
    """Returns prediction, accuracy and loss, the last two computed on the device."""

    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, x, target=None):
        logits = self.model(x)
        if target is None:
            return logits
        loss = self.loss(logits, target)
        accuracy = (torch.argmax(logits, dim=-1) == target).float().mean()
        return logits, accuracy, loss


class WarmupCosine(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer, warmup, total):
        def scale(step):
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))

        super().__init__(optimizer, scale)


def common_options():
    opts = poptorch.Options()
    opts.randomSeed(7)
    opts.enableStableNorm(True)
    opts.setAvailableMemoryProportion({"IPU0": 0.3})
    opts.Precision.setPartialsType(torch.float16)
    return opts


def training_options():
    opts = common_options()
    opts.deviceIterations(2)
    opts.replicationFactor(2)
    opts.Training.gradientAccumulation(2)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.Precision.enableStochasticRounding(True)
    opts.outputMode(poptorch.OutputMode.All)
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Standard))
    opts._Popart.set(
        "accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized)
    )
    opts._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.setEngineOptions({"target.syncReplicasIndependently": "true"})
    opts._Popart.setPatterns({"DepthwiseConvDegroup": True})
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(True).useReplicatedTensorSharding(False)
    )
    return opts


def main():
    torch.manual_seed(7)
    mean, std = torch.tensor([0.4, 0.4, 0.4]), torch.tensor([0.25, 0.25, 0.25])
    backbone = NormalizeInputModel(SmallResNet(CLASSES), mean, std, output_cast="half")
    model = TrainingModelWithLoss(backbone, LabelSmoothing(0.1)).train()
    model.half()

    no_decay = [p for p in model.parameters() if p.ndim == 1]
    decay = [p for p in model.parameters() if p.ndim > 1]
    optimizer = poptorch.optim.SGD(
        [{"params": decay, "weight_decay": 1e-4}, {"params": no_decay, "weight_decay": 0}],
        lr=0.02,
        momentum=0.9,
        loss_scaling=64.0,
        use_combined_accum=False,
        accum_type=torch.float16,
        velocity_accum_type=torch.float32,
    )
    opts = training_options()
    loader = poptorch.DataLoader(opts, Items(192, corner), batch_size=4, shuffle=True, drop_last=True)
    scheduler = WarmupCosine(optimizer, 4, EPOCHS * len(loader))
    training_model = poptorch.trainingModel(model, opts, optimizer)

    def follow_schedule():
        scheduler.step()
        training_model.setOptimizer(optimizer)

    losses = train(training_model, loader, EPOCHS, after=follow_schedule)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(
            {
                "epoch": EPOCHS,
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "loss": losses[-1],
            },
            path,
        )
        training_model.destroy()
        checkpoint = torch.load(path)

    fresh = NormalizeInputModel(SmallResNet(CLASSES), mean, std, output_cast="half")
    restored = TrainingModelWithLoss(fresh, LabelSmoothing(0.0)).half().eval()
    restored.load_state_dict(checkpoint["model_state_dict"])
    eval_opts = common_options().deviceIterations(4)
    validation_model = poptorch.inferenceModel(restored, eval_opts)
    eval_loader = poptorch.DataLoader(eval_opts, Items(64, corner, seed=1000), batch_size=4)
    correct = total = 0
    for images, labels in eval_loader:
        prediction = validation_model(images).argmax(dim=1)
        correct += (prediction == labels).sum().item()
        total += labels.numel()
    print(f"validation accuracy {correct / total:.2%} of {total}")
    assert total == 64
    assert losses[-1] < 0.7 * losses[0], losses
    assert correct / total > 0.8


if __name__ == "__main__":
    main()
