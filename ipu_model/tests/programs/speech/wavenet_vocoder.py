"""WaveNet on mu-law samples with skip connections and gates; generation feeds the receptive field back."""

import torch
from program_kit import check_learned, train
from torch import nn
from torch.nn import functional as F

import poptorch

LEVELS, CHANNELS, LENGTH, DILATIONS = 16, 16, 40, (1, 2, 4)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(LEVELS, CHANNELS), nn.Conv1d(CHANNELS, LEVELS, 1)
        self.gates = nn.ModuleList(nn.Conv1d(CHANNELS, 2 * CHANNELS, 2, dilation=d) for d in DILATIONS)
        self.mix = nn.ModuleList(nn.Conv1d(CHANNELS, 2 * CHANNELS, 1) for _ in DILATIONS)

    def forward(self, samples, targets=None):
        x, skips = self.embed(samples).transpose(1, 2), 0
        for dilation, gate, mix in zip(DILATIONS, self.gates, self.mix):
            signal, opening = gate(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            residual, skip = mix(torch.tanh(signal) * torch.sigmoid(opening)).chunk(2, dim=1)
            x, skips = x + residual, skips + skip
        logits = self.out(torch.relu(skips))
        if targets is None:
            return logits[:, :, -1]
        return logits, poptorch.identity_loss(F.cross_entropy(logits, targets), reduction="none")


def batch(count):
    wave = 0.9 * torch.sin(0.5 * torch.arange(LENGTH + 1.0) + 6.3 * torch.rand(count, 1))
    compressed = torch.sign(wave) * torch.log1p((LEVELS - 1) * wave.abs()) / torch.log(torch.tensor(float(LEVELS)))
    samples = ((compressed + 1) / 2 * (LEVELS - 1) + 0.5).long()
    return samples[:, :-1].contiguous(), samples[:, 1:].contiguous()


torch.manual_seed(0)
model = WaveNet().train()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
opts.Training.setConvolutionDithering(True)
optimizer = poptorch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.95, momentum=0.5, centered=True)
training = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training, (batch(16) for _ in range(60))), 0.5)
training.detachFromDevice()
generator, (window, _) = poptorch.inferenceModel(model.eval()), batch(1)
for _ in range(12):
    window = torch.cat([window[:, 1:], generator(window).argmax(1, keepdim=True)], dim=1)
assert window[0, -12:].unique().numel() > 3
