"""Keyword spotting: log-mel features on the host, a small residual network or an LSTM on the IPU."""

import sys
from types import SimpleNamespace

import torch
from program_kit import Items, train
from torch import nn

import poptorch

RATE, LENGTH, N_FFT, HOP, MELS = 4000, 1024, 128, 64, 16


def mel_filters():
    points = torch.linspace(0, N_FFT // 2, MELS + 2)
    bins = torch.arange(N_FFT // 2 + 1).float()
    rising = (bins[None] - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    falling = (points[2:, None] - bins[None]) / (points[2:] - points[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


class LogMel:
    def __init__(self):
        self.window, self.filters = torch.hann_window(N_FFT), mel_filters()

    def __call__(self, audio):
        spectrum = torch.stft(audio, N_FFT, HOP, window=self.window, return_complex=True).abs() ** 2
        return torch.log(self.filters @ spectrum + 1e-3)


LOG_MEL = LogMel()


def word(index, g):
    label = int(torch.randint(0, 4, (), generator=g))
    t = torch.arange(LENGTH) / RATE
    frequency = 200 + 400 * label
    audio = torch.sin(2 * torch.pi * frequency * t * (1 + 0.1 * torch.rand((), generator=g)))
    return LOG_MEL(audio + 0.3 * torch.randn(LENGTH, generator=g)), label


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        x = x + self.body(x)
        return nn.functional.relu_(x)


def residual_network():
    return nn.Sequential(
        nn.Unflatten(1, (1, MELS)), nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.InstanceNorm2d(8, affine=True),
        ResBlock(8), nn.AvgPool2d(2), nn.Conv2d(8, 16, 1), ResBlock(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


class LSTMNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(MELS, 24, batch_first=True, proj_size=12)
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        y, _ = self.lstm(x.permute(0, 2, 1))
        return self.out(y[:, -1])


MODELS = {"resnet": residual_network, "lstm": LSTMNetwork}


class WithLoss(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self._model, self._loss = model, loss

    def forward(self, x, target):
        out = self._model(x)
        return out, self._loss(out, target)


def run(name, args):
    torch.manual_seed(0)
    opts = poptorch.Options().deviceIterations(4).randomSeed(0)
    loader = poptorch.DataLoader(opts, Items(192, word), batch_size=8, shuffle=True)
    model = MODELS[name]()
    training = poptorch.trainingModel(
        WithLoss(model, nn.CrossEntropyLoss()), opts, torch.optim.Adam(model.parameters(), lr=args.lr)
    )
    train(training, loader, args.epochs)
    training.detachFromDevice()

    model.eval()
    test_opts = poptorch.Options().deviceIterations(2)
    inference = poptorch.inferenceModel(model, test_opts)
    test = poptorch.DataLoader(test_opts, Items(64, word, seed=10_000), batch_size=16)
    right = sum(int((inference(features).argmax(1) == labels).sum()) for features, labels in test)
    return right / 64


if __name__ == "__main__":
    args = SimpleNamespace(models=list(MODELS), epochs=5, lr=0.01)
    accuracies = {name: run(name, args) for name in args.models}
    print(accuracies)
    sys.exit(any(accuracy < 0.8 for accuracy in accuracies.values()))
