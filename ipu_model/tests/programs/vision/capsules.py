"""A capsule network with dynamic routing and margin loss."""

import torch
from program_kit import accuracy, check_learned, inferred, train
from torch import nn
from torch.nn import functional as F

import poptorch

ROUTES, CLASSES = 64, 4


def squash(x):
    norm2 = (x * x).sum(dim=-1, keepdim=True)
    return norm2 / (1 + norm2) * x / torch.sqrt(norm2 + 1e-8)


class CapsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.capsules = nn.ModuleList([nn.Conv2d(1, 4, 5, stride=2) for _ in range(4)])
        self.weight = nn.Parameter(0.1 * torch.randn(1, ROUTES, CLASSES, 8, 4))

    def forward(self, images, labels=None):
        u = squash(torch.stack([capsule(images) for capsule in self.capsules], dim=-1).flatten(1, 3))
        predictions = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(*predictions.shape[:3], 1, dtype=u.dtype, device=u.device)
        for _ in range(3):
            v = squash((torch.softmax(logits, dim=2) * predictions).sum(dim=1, keepdim=True))
            logits = logits + (predictions.detach() * v.detach()).sum(dim=-1, keepdim=True)
        lengths = v.squeeze(1).norm(dim=-1)
        if labels is None:
            return lengths
        one_hot = F.one_hot(labels, CLASSES).to(images.dtype)
        margin = one_hot * F.relu(0.9 - lengths) ** 2 + 0.5 * (1 - one_hot) * F.relu(lengths - 0.1) ** 2
        return lengths, poptorch.identity_loss(margin.sum(1).mean(), "none")


def glyphs(count):
    bar, labels = torch.zeros(11, 11), torch.randint(CLASSES, (count,))
    bar[:, 5:7] = 1
    templates, shifts = (bar, bar.t(), torch.eye(11), torch.eye(11).flip(1)), torch.randint(-1, 2, (count, 2)).tolist()
    pictures = [torch.roll(templates[label], shift, dims=(0, 1)) for label, shift in zip(labels, shifts)]
    return torch.stack(pictures)[:, None] + 0.1 * torch.rand(count, 1, 11, 11), labels


torch.manual_seed(0)
model = CapsNet()
opts = poptorch.Options().deviceIterations(4).setAvailableMemoryProportion({"IPU0": 0.5})
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
check_learned(train(training, (glyphs(64) for _ in range(30))), 0.5)
training.detachFromDevice()
images, labels = glyphs(64)
assert accuracy(inferred(model, images), labels) > 0.8
