"""PointNet on balls, cubes and planes: an input transform, shared layers, and a maximum over the points."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from program_kit import accuracy, train

import poptorch


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.points = nn.Sequential(
            nn.Conv1d(k, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1), nn.BatchNorm1d(32), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, k * k))
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, x):
        x = torch.max(self.points(x), 2)[0]
        identity = torch.eye(self.k, dtype=x.dtype).view(1, -1)
        return (self.head(x) + identity).view(-1, self.k, self.k)


class PointNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.transform = TNet(3)
        self.features = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 48, 1), nn.BatchNorm1d(48)
        )
        self.classifier = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Dropout(p=0.2), nn.Linear(24, classes))

    def forward(self, points, labels=None):
        x = points.transpose(2, 1)
        matrix = self.transform(x)
        x = torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)
        x = F.adaptive_max_pool1d(self.features(x), 1).flatten(1)
        log_probs = F.log_softmax(self.classifier(x), dim=1)
        if labels is None:
            return log_probs
        difference = torch.bmm(matrix, matrix.transpose(2, 1)) - torch.eye(3)
        orthogonal = torch.mean(torch.norm(difference, dim=(1, 2)))
        return log_probs, poptorch.identity_loss(F.nll_loss(log_probs, labels) + 0.001 * orthogonal, reduction="none")


class Subsample(nn.Module):
    """Farthest point sampling on the device, all clouds in one call."""

    def __init__(self, clouds, points, ratio):
        super().__init__()
        self.ptr, self.ratio = [i * points for i in range(clouds + 1)], ratio

    def forward(self, flat):
        return poptorch.fps(flat, self.ptr, ratio=self.ratio)


def clouds(count, points):
    labels = torch.arange(count) % 3
    ball = F.normalize(torch.randn(count, points, 3), dim=-1)
    cube = torch.rand(count, points, 3) * 2 - 1
    plane = torch.cat([torch.rand(count, points, 2) * 2 - 1, 0.05 * torch.randn(count, points, 1)], dim=-1)
    shapes = torch.stack([ball, cube, plane])[labels, torch.arange(count)]
    return shapes + 0.02 * torch.randn_like(shapes), labels


def main():
    args = SimpleNamespace(points=64, keep=0.5, epochs=8)
    torch.manual_seed(0)
    points, labels = clouds(96, args.points)
    chosen = poptorch.inferenceModel(Subsample(96, args.points, args.keep))(points.view(-1, 3))
    kept = points.view(-1, 3)[chosen.long()].view(96, -1, 3)
    assert kept.shape == (96, int(args.points * args.keep), 3)

    model = PointNet()
    opts = poptorch.Options().deviceIterations(2)
    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(kept, labels), batch_size=8, shuffle=True)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.01, epochs=args.epochs, steps_per_epoch=len(loader), cycle_momentum=False
    )
    training_model = poptorch.trainingModel(model.train(), opts, optimizer)

    def follow_schedule():
        scheduler.step()
        training_model.setOptimizer(optimizer)

    losses = train(training_model, loader, args.epochs, after=follow_schedule)
    training_model.detachFromDevice()
    inference_model = poptorch.inferenceModel(model.eval())
    log_probs = inference_model(kept)
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    assert accuracy(log_probs, labels) > 0.8


if __name__ == "__main__":
    main()
