"""MLP-Mixer in half precision with input and output transfers that overlap the computation."""

import torch
from program_kit import train
from torch import nn

import poptorch

IMAGE, PATCH, DIM, DEPTH, CLASSES = 16, 4, 32, 2, 3


def feed_forward(dim, hidden):
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim))


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix, self.channel_mix = feed_forward(tokens, 2 * tokens), feed_forward(dim, 2 * dim)

    def forward(self, x):
        with poptorch.NameScope("tokens"):
            x = x + self.token_mix(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        with poptorch.NameScope("channels"):
            return x + self.channel_mix(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        tokens = (IMAGE // PATCH) ** 2
        self.stem = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, DIM) for _ in range(DEPTH)))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, images, labels=None):
        images = poptorch.set_overlap_for_input(images, poptorch.OverlapMode.OverlapDeviceIterationLoop)
        x = self.stem(images.half()).flatten(2).transpose(1, 2)
        x = self.blocks(x).mean(dim=1)
        logits = self.head(x)
        if labels is None:
            return poptorch.set_overlap_for_output(logits, poptorch.OverlapMode.OverlapDeviceIterationLoop)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        return poptorch.set_overlap_for_output(loss, poptorch.OverlapMode.OverlapDeviceIterationLoop)


def options(device_iterations):
    opts = poptorch.Options()
    opts.deviceIterations(device_iterations)
    opts.TensorLocations.numIOTiles(32)
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts.Precision.enableStochasticRounding(True)
    opts.outputMode(poptorch.OutputMode.All)
    return opts


def main():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (384,), generator=generator)
    images = torch.randn(384, 3, IMAGE, IMAGE, generator=generator)
    images[torch.arange(384), labels] += 0.8
    dataset = torch.utils.data.TensorDataset(images, labels)
    known, test = torch.utils.data.random_split(dataset, [320, 64], generator=generator)

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
    losses = train(trainer, poptorch.DataLoader(opts, known, batch_size=8, shuffle=True), epochs=4)
    scoped = [name for name in trainer.getTensorNames() if "tokens" in name]
    print(f"{len(scoped)} tensors carry the name scope 'tokens'")
    trainer.detachFromDevice()

    opts = options(device_iterations=4)
    classifier = poptorch.inferenceModel(model.eval(), opts)
    right = 0
    for batch, target in poptorch.DataLoader(opts, test, batch_size=16):
        right += int((classifier(batch).argmax(-1) == target).sum())
    print(f"{right} of {len(test)} right")
    assert scoped
    assert losses[-1] < 0.7 * losses[0]
    assert right > 40


if __name__ == "__main__":
    main()
