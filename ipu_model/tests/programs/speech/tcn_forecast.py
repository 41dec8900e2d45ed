"""Forecast a noisy periodic series with a temporal convolutional network (dilated, causal, weight-normalised)."""

import argparse
import sys

import torch
from torch import nn
from torch.nn.utils import weight_norm

import poptorch


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation, dropout):
        super().__init__()
        padding = (kernel_size - 1) * dilation
        self.net = nn.Sequential(
            weight_norm(nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=padding, dilation=dilation)),
            Chomp1d(padding),
            nn.ReLU(),
            nn.Dropout(dropout),
            weight_norm(nn.Conv1d(n_outputs, n_outputs, kernel_size, padding=padding, dilation=dilation)),
            Chomp1d(padding),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.net(x) + residual)


class TCN(nn.Module):
    def __init__(self, channels, horizon, kernel_size=3, dropout=0.05):
        super().__init__()
        layers = []
        for level, width in enumerate(channels):
            previous = 1 if level == 0 else channels[level - 1]
            layers.append(TemporalBlock(previous, width, kernel_size, 2**level, dropout))
        self.network = nn.Sequential(*layers)
        self.head = nn.Linear(channels[-1], horizon)

    def forward(self, x):
        return self.head(self.network(x)[:, :, -1])


class ModelWithLoss(nn.Module):
    def __init__(self, model, quantiles=None):
        super().__init__()
        self.model = model
        self.loss = nn.SmoothL1Loss(beta=0.5)

    def forward(self, history, future):
        forecast = self.model(history)
        return forecast, self.loss(forecast, future)


def series(length):
    t = torch.arange(length, dtype=torch.float32)
    return torch.sin(t / 4) + 0.3 * torch.sin(t / 1.7) + 0.05 * torch.randn(length)


def windows(values, history, horizon):
    stacked = values.unfold(0, history + horizon, 1)
    return torch.utils.data.TensorDataset(stacked[:, None, :history].contiguous(), stacked[:, history:].contiguous())


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", default=32, type=int)
    parser.add_argument("--horizon", default=4, type=int)
    parser.add_argument("--epochs", default=5, type=int)
    parser.add_argument("--micro-batch", default=8, type=int)
    args = parser.parse_args(argv)

    torch.manual_seed(42)
    values = series(500)
    train_set, test_set = (
        windows(values[:400], args.history, args.horizon),
        windows(values[400:], args.history, args.horizon),
    )

    opts = poptorch.Options()
    opts.deviceIterations(5)
    opts.Training.setAutomaticLossScaling(False)
    train_loader = poptorch.DataLoader(opts, train_set, args.micro_batch, shuffle=True)
    test_loader = torch.utils.data.DataLoader(test_set, batch_size=len(test_set))

    model = TCN([8, 16, 16], args.horizon)
    wrapped = ModelWithLoss(model)
    optimizer = poptorch.optim.RMSprop(wrapped.parameters(), lr=3e-3, alpha=0.95, momentum=0.5)
    training = poptorch.trainingModel(wrapped, opts, optimizer)
    for epoch in range(args.epochs):
        total = count = 0
        for history, future in train_loader:
            forecast, loss = training(history, future)
            total, count = total + loss.item(), count + 1
        print(f"epoch {epoch} loss {total / count:.4f}")
    training.detachFromDevice()

    model.eval()
    inference = poptorch.inferenceModel(model)
    for history, future in test_loader:
        forecast = inference(history)
        error = (forecast - future).abs().mean().item()
        naive = (history[:, 0, -1:] - future).abs().mean().item()
        on_cpu = TCN.forward(model, history).detach()
    print(f"mean absolute error {error:.3f}, of the last value repeated {naive:.3f}")
    if not torch.allclose(forecast, on_cpu, atol=1e-4):
        return 1
    return 0 if error < 0.6 * naive else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
