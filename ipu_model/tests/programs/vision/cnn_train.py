"""Train a small residual CNN in half precision on replicated IPUs with 8-bit input, then validate it."""

import math

import torch
from program_kit import Items, Over, accuracy, check_learned, following, save_memory, train
from torch import nn
from torch.nn import functional as F

import popart
import poptorch

EPOCHS, CLASSES, WARMUP, STEPS = 6, 4, 4, 36


def corner(index, generator):
    """An image in unsigned bytes: each class is brighter in its own corner."""
    label = int(torch.randint(CLASSES, (), generator=generator))
    image = torch.randint(120, (3, 16, 16), generator=generator, dtype=torch.uint8)
    row, column = divmod(label, 2)
    image[:, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] += 100
    return image, label


class NormalizeInput(nn.Module):
    """Casts and normalises the bytes on the IPU, so that a quarter of the data crosses the PCIe link."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mul", torch.full((3, 1, 1), 1 / (255.0 * 0.25)))
        self.register_buffer("sub", torch.full((3, 1, 1), 0.4 / 0.25))

    def forward(self, img):
        return torch.sub(torch.mul(img.half(), self.mul), self.sub)


def convolution(channels):
    return nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.GroupNorm(4, channels)


class ResidualBlock(Over):
    def forward(self, x):
        return F.relu(self.network(x) + x)


def small_resnet():
    stem = NormalizeInput(), nn.Conv2d(3, 16, 3, stride=2, padding=1)
    blocks = [ResidualBlock(nn.Sequential(*convolution(16), nn.ReLU(), *convolution(16))) for _ in range(2)]
    return nn.Sequential(*stem, *blocks, nn.AvgPool2d(4), nn.Flatten(1), nn.Linear(64, CLASSES))


class TrainingModelWithLoss(nn.Module):
    """Returns prediction, accuracy and loss, the last two computed on the device."""

    def __init__(self, smoothing):
        super().__init__()
        self.model, self.smoothing = small_resnet(), smoothing

    def forward(self, x, target=None):
        logits = self.model(x)
        if target is None:
            return logits
        log_probs = F.log_softmax(logits.float(), dim=-1)
        loss = (1.0 - self.smoothing) * F.nll_loss(log_probs, target) - self.smoothing * log_probs.mean()
        accuracy = (torch.argmax(logits, dim=-1) == target).float().mean()
        return logits, accuracy, poptorch.identity_loss(loss, reduction="none")


def common_options():
    opts = poptorch.Options().randomSeed(7).enableStableNorm(True)
    opts.setAvailableMemoryProportion({"IPU0": 0.3})
    opts.Precision.setPartialsType(torch.float16)
    return opts


def training_options():
    opts = common_options().deviceIterations(2).replicationFactor(2).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(2)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.Precision.enableStochasticRounding(True)
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Standard))
    save_memory(opts)
    opts._Popart.setEngineOptions({"target.syncReplicasIndependently": "true"})
    opts._Popart.setPatterns({"DepthwiseConvDegroup": True})
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(True).useReplicatedTensorSharding(False)
    )
    return opts


def warmup_cosine(step):
    return min((step + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * max(0, step - WARMUP) / (STEPS - WARMUP))))


torch.manual_seed(7)
model = TrainingModelWithLoss(smoothing=0.1).train().half()
optimizer = poptorch.optim.SGD(
    [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 1e-4},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0},
    ],
    lr=0.02,
    momentum=0.9,
    loss_scaling=64.0,
    use_combined_accum=False,
    accum_type=torch.float16,
    velocity_accum_type=torch.float32,
)
opts = training_options()
loader = poptorch.DataLoader(opts, Items(192, corner), batch_size=4, shuffle=True, drop_last=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine)
training_model = poptorch.trainingModel(model, opts, optimizer)
losses = train(training_model, loader, EPOCHS, after=following(scheduler, training_model))
check_learned(losses, 0.7)
states = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
torch.save({"epoch": EPOCHS, "loss": losses[-1], **states}, "model.pt")
training_model.destroy()

restored = TrainingModelWithLoss(smoothing=0.0).half().eval()
restored.load_state_dict(torch.load("model.pt")["model_state_dict"])
eval_opts = common_options().deviceIterations(4)
validation_model = poptorch.inferenceModel(restored, eval_opts)
eval_loader = poptorch.DataLoader(eval_opts, Items(64, corner, seed=1000), batch_size=4)
scores, labels = zip(*((validation_model(images), labels) for images, labels in eval_loader))
assert sum(map(len, labels)) == 64
assert accuracy(torch.cat(scores), torch.cat(labels)) > 0.8
