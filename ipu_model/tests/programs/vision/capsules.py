"""A capsule network with dynamic routing and margin loss."""

import torch
from program_kit import accuracy, check_learned, train
from torch import nn
from torch.nn import functional as F

import poptorch


def squash(x):
    norm2 = (x * x).sum(dim=-1, keepdim=True)
    return norm2 / (1 + norm2) * x / torch.sqrt(norm2 + 1e-8)


class CapsNet(nn.Module):
    def __init__(self, routes=64, classes=4):
        super().__init__()
        self.conv, self.classes = nn.Conv2d(1, 16, 3), classes
        self.capsules = nn.ModuleList([nn.Conv2d(16, 4, 3, stride=2) for _ in range(4)])
        self.weight = nn.Parameter(0.1 * torch.randn(1, routes, classes, 8, 4))

    def forward(self, images, labels=None):
        x = F.relu(self.conv(images))
        u = squash(torch.stack([capsule(x) for capsule in self.capsules], dim=-1).flatten(1, 3))
        predictions = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(*predictions.shape[:3], 1, dtype=u.dtype, device=u.device)
        for _ in range(3):
            v = squash((torch.softmax(logits, dim=2) * predictions).sum(dim=1, keepdim=True))
            logits = logits + (predictions.detach() * v.detach()).sum(dim=-1, keepdim=True)
        lengths = v.squeeze(1).norm(dim=-1)
        if labels is None:
            return lengths
        one_hot = F.one_hot(labels, self.classes).to(images.dtype)
        margin = one_hot * F.relu(0.9 - lengths) ** 2 + 0.5 * (1 - one_hot) * F.relu(lengths - 0.1) ** 2
        return lengths, poptorch.identity_loss(margin.sum(1).mean(), "none")


def glyphs(count):
    templates = torch.zeros(4, 12, 12)
    templates[0, 2:10, 5:7] = templates[1, 5:7, 2:10] = 1
    templates[2], templates[3] = torch.eye(12), torch.eye(12).flip(1)
    labels, shifts = torch.randint(4, (count,)), torch.randint(-1, 2, (count, 2)).tolist()
    pictures = [torch.roll(templates[label], shift, dims=(0, 1)) for label, shift in zip(labels, shifts)]
    return torch.stack(pictures)[:, None] + 0.1 * torch.rand(count, 1, 12, 12), labels


torch.manual_seed(0)
model = CapsNet()
opts = poptorch.Options().deviceIterations(4)
opts.setAvailableMemoryProportion({"IPU0": 0.5})
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
check_learned(train(training, (glyphs(64) for _ in range(25))), 0.5)
images, labels = glyphs(64)
assert accuracy(poptorch.inferenceModel(model)(images), labels) > 0.8
