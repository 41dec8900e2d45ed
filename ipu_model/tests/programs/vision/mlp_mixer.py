"""MLP-Mixer in half precision with input and output transfers that overlap the computation."""

import torch
from program_kit import accuracy, check_learned, train
from torch import nn

import poptorch

IMAGE, PATCH, DIM, DEPTH, CLASSES = 16, 4, 32, 2, 3
LOOP = poptorch.OverlapMode.OverlapDeviceIterationLoop


def feed_forward(dim):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(approximate="tanh"), nn.Linear(2 * dim, dim))


class MixerBlock(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.token_mix, self.channel_mix = feed_forward(tokens), feed_forward(DIM)

    def forward(self, x):
        with poptorch.NameScope("tokens"):
            x = x + self.token_mix(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        with poptorch.NameScope("channels"):
            return x + self.channel_mix(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.blocks = nn.Sequential(*(MixerBlock((IMAGE // PATCH) ** 2) for _ in range(DEPTH)))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, images, labels=None):
        images = poptorch.set_overlap_for_input(images, LOOP)
        x = self.stem(images.half()).flatten(2).transpose(1, 2)
        logits = self.head(self.blocks(x).mean(dim=1))
        if labels is None:
            return poptorch.set_overlap_for_output(logits, LOOP)
        return poptorch.set_overlap_for_output(nn.functional.cross_entropy(logits.float(), labels), LOOP)


def options(device_iterations):
    opts = poptorch.Options().deviceIterations(device_iterations).outputMode(poptorch.OutputMode.All)
    opts.TensorLocations.numIOTiles(32)
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts.Precision.enableStochasticRounding(True)
    return opts


torch.manual_seed(0)
labels = torch.randint(0, CLASSES, (384,))
images = torch.randn(384, 3, IMAGE, IMAGE)
images[torch.arange(384), labels] += 0.8
known, test = torch.utils.data.random_split(torch.utils.data.TensorDataset(images, labels), [320, 64])

model = Mixer().half().train()
opts = options(device_iterations=10)
optimizer = poptorch.optim.AdamW(
    model.parameters(),
    lr=2e-3,
    loss_scaling=128,
    accum_type=torch.float16,
    first_order_momentum_accum_type=torch.float16,
    second_order_momentum_accum_type=torch.float32,
)
trainer = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(trainer, poptorch.DataLoader(opts, known, batch_size=8, shuffle=True), epochs=4), 0.7)
assert any("tokens" in name for name in trainer.getTensorNames())
trainer.detachFromDevice()

opts = options(device_iterations=4)
classifier = poptorch.inferenceModel(model.eval(), opts)
loader = poptorch.DataLoader(opts, test, batch_size=16)
assert all(accuracy(classifier(images), labels) > 0.62 for images, labels in loader)
