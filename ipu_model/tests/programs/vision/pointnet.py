"""PointNet on balls, cubes and planes: sampled points, an input transform, and a maximum over the points."""

import torch
from program_kit import accuracy, check_learned, following, inferred, on_ipu, train
from torch import nn
from torch.nn import functional as F

import poptorch

COUNT, POINTS, KEPT = 96, 64, 32


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.transform = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.to_matrix = nn.Linear(16, 9)
        nn.init.zeros_(self.to_matrix.weight)
        self.register_buffer("identity", torch.eye(3), persistent=False)
        self.features = nn.Sequential(nn.Conv1d(3, 48, 1), nn.BatchNorm1d(48), nn.ReLU(), nn.Conv1d(48, 48, 1))
        self.classifier = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Dropout(p=0.2), nn.Linear(24, 3))

    def forward(self, points, labels=None):
        x = torch.max(self.transform(points.transpose(2, 1)), 2)[0]
        matrix = self.to_matrix(x).view(-1, 3, 3) + self.identity
        x = torch.bmm(points, matrix).transpose(2, 1)
        log_probs = F.log_softmax(self.classifier(torch.max(self.features(x), 2)[0]), dim=1)
        if labels is None:
            return log_probs
        orthogonal = torch.norm(torch.bmm(matrix, matrix.transpose(2, 1)) - self.identity, dim=(1, 2)).mean()
        return log_probs, poptorch.identity_loss(F.nll_loss(log_probs, labels) + 0.001 * orthogonal, reduction="none")


def subsample(flat):
    ends = [i * POINTS for i in range(COUNT + 1)]
    return poptorch.fps(flat, ends, ratio=KEPT / POINTS, random_start=False)


torch.manual_seed(0)
labels = torch.arange(COUNT) % 3
ball, cube = F.normalize(torch.randn(COUNT, POINTS, 3), dim=-1), torch.rand(COUNT, POINTS, 3) * 2 - 1
shapes = torch.stack([ball, cube, cube * torch.tensor([1, 1, 0.05])])[labels, torch.arange(COUNT)].view(-1, 3)
points = shapes[on_ipu(subsample)(shapes).long()].view(COUNT, KEPT, 3)

model, epochs = PointNet().train(), 12
opts = poptorch.Options().deviceIterations(2).randomSeed(0)
loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(points, labels), batch_size=8, shuffle=True)
optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
steps = {"epochs": epochs, "steps_per_epoch": len(loader)}
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, cycle_momentum=False, **steps)
training = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training, loader, epochs, after=following(scheduler, training)), 0.6, count=6)
training.detachFromDevice()
assert accuracy(inferred(model, points), labels) > 0.8
