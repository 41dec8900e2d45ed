"""Train a small residual CNN in half precision on replicated IPUs with 8-bit input, then validate it."""

import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import popart
import poptorch


class SyntheticImages(torch.utils.data.Dataset):
    """Images in unsigned bytes: each class is brighter in its own corner."""

    def __init__(self, length, image_size, num_classes, seed=0):
        generator = np.random.default_rng(seed)
        self.labels = generator.integers(0, num_classes, length)
        self.images = generator.integers(0, 120, (length, 3, image_size, image_size), dtype=np.uint8)
        half = image_size // 2
        for image, label in zip(self.images, self.labels):
            row, column = divmod(int(label), 2)
            image[:, row * half : (row + 1) * half, column * half : (column + 1) * half] += 100

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index]), int(self.labels[index])


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
    """Returns prediction, loss and accuracy, the last two computed on the device."""

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
        return logits, loss, accuracy


class WarmupCosine(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer, warmup, total):
        def scale(step):
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))

        super().__init__(optimizer, scale)


def common_options(args):
    opts = poptorch.Options()
    opts.randomSeed(args.seed)
    opts.enableStableNorm(True)
    opts.setAvailableMemoryProportion({"IPU0": 0.3})
    opts.Precision.setPartialsType(torch.float16)
    return opts


def training_options(args):
    opts = common_options(args)
    opts.deviceIterations(args.device_iterations)
    opts.replicationFactor(args.replicas)
    opts.Training.gradientAccumulation(args.gradient_accumulation)
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
    opts._Popart.setPatterns({"DepthwiseConvDegroup": True}) if args.degroup else None
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(True).useReplicatedTensorSharding(False)
    )
    return opts


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--device-iterations", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--degroup", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    num_classes = 4
    mean, std = torch.tensor([0.4, 0.4, 0.4]), torch.tensor([0.25, 0.25, 0.25])
    backbone = NormalizeInputModel(SmallResNet(num_classes), mean, std, output_cast="half")
    model = TrainingModelWithLoss(backbone, LabelSmoothing(args.label_smoothing)).train()
    model.half()

    no_decay = [p for p in model.parameters() if p.ndim == 1]
    decay = [p for p in model.parameters() if p.ndim > 1]
    optimizer = poptorch.optim.SGD(
        [{"params": decay, "weight_decay": 1e-4}, {"params": no_decay, "weight_decay": 0}],
        lr=args.lr,
        momentum=0.9,
        loss_scaling=64.0,
        use_combined_accum=False,
        accum_type=torch.float16,
        velocity_accum_type=torch.float32,
    )
    opts = training_options(args)
    train_data = SyntheticImages(192, 16, num_classes)
    loader = poptorch.DataLoader(opts, train_data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    scheduler = WarmupCosine(optimizer, 4, args.epochs * len(loader))
    training_model = poptorch.trainingModel(model, opts, optimizer)

    first = None
    for epoch in range(args.epochs):
        losses, accuracies, start = [], [], time.perf_counter()
        for images, labels in loader:
            _, loss, accuracy = training_model(images, labels)
            losses.append(loss.mean().item())
            accuracies.append(accuracy.mean().item())
            scheduler.step()
            training_model.setOptimizer(optimizer)
        rate = len(loader) * loader.combinedBatchSize / (time.perf_counter() - start)
        first = first if first is not None else losses[0]
        print(
            f"epoch {epoch}: loss {np.mean(losses):.3f} accuracy {np.mean(accuracies):.2%} {rate:.0f} img/s "
            f"lr {scheduler.get_last_lr()[0]:.4f}"
        )

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(
            {
                "epoch": args.epochs,
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "opts": vars(args),
                "loss": losses[-1],
            },
            path,
        )
        training_model.destroy()
        checkpoint = torch.load(path)

    fresh = NormalizeInputModel(SmallResNet(num_classes), mean, std, output_cast="half")
    restored = TrainingModelWithLoss(fresh, LabelSmoothing(0.0)).half().eval()
    restored.load_state_dict(checkpoint["model_state_dict"])
    eval_opts = common_options(args).deviceIterations(4)
    validation_model = poptorch.inferenceModel(restored, eval_opts)
    eval_loader = poptorch.DataLoader(eval_opts, SyntheticImages(64, 16, num_classes, seed=1), batch_size=4)
    correct = total = 0
    for images, labels in eval_loader:
        prediction = validation_model(images).argmax(dim=1)
        correct += (prediction == labels).sum().item()
        total += labels.numel()
    print(f"validation accuracy {correct / total:.2%} of {total}")
    assert total == 64
    assert losses[-1] < 0.7 * first, (first, losses[-1])
    assert correct / total > 0.8


if __name__ == "__main__":
    main()
