"""A capsule network with dynamic routing, margin loss and a reconstruction term."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


def squash(x, dim=-1):
    norm2 = (x * x).sum(dim=dim, keepdim=True)
    return norm2 / (1 + norm2) * x / torch.sqrt(norm2 + 1e-8)


class PrimaryCapsules(nn.Module):
    def __init__(self, inputs, capsules, dim):
        super().__init__()
        self.capsules = nn.ModuleList([nn.Conv2d(inputs, capsules, 3, stride=2) for _ in range(dim)])

    def forward(self, x):
        u = torch.stack([capsule(x) for capsule in self.capsules], dim=-1)
        return squash(u.flatten(1, 3))


class DigitCapsules(nn.Module):
    def __init__(self, routes, in_dim, classes, out_dim, iterations=3):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(1, routes, classes, out_dim, in_dim))
        self.iterations, self.routes, self.classes = iterations, routes, classes

    def forward(self, u):
        predictions = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(u.shape[0], self.routes, self.classes, 1, dtype=u.dtype, device=u.device)
        for i in range(self.iterations):
            coupling = torch.softmax(logits, dim=2)
            v = squash((coupling * predictions).sum(dim=1, keepdim=True))
            if i < self.iterations - 1:
                logits = logits + (predictions.detach() * v.detach()).sum(dim=-1, keepdim=True)
        return v.squeeze(1)


class CapsNet(nn.Module):
    def __init__(self, classes=4, size=12):
        super().__init__()
        self.size, self.classes = size, classes
        self.conv = nn.Conv2d(1, 16, 3)
        self.primary = PrimaryCapsules(16, capsules=4, dim=4)
        self.digits = DigitCapsules(routes=64, in_dim=4, classes=classes, out_dim=8)
        self.decoder = nn.Sequential(
            nn.Linear(8 * classes, 32), nn.ReLU(inplace=True), nn.Linear(32, size * size), nn.Sigmoid()
        )

    def forward(self, images, labels=None):
        capsules = self.digits(self.primary(F.relu(self.conv(images))))
        lengths = capsules.norm(dim=-1)
        if labels is None:
            return lengths
        one_hot = F.one_hot(labels, self.classes).to(images.dtype)
        margin = one_hot * F.relu(0.9 - lengths) ** 2 + 0.5 * (1 - one_hot) * F.relu(lengths - 0.1) ** 2
        decoded = self.decoder((capsules * one_hot[:, :, None]).flatten(1))
        reconstruction = F.mse_loss(decoded, images.flatten(1), reduction="sum") / images.shape[0]
        return lengths, poptorch.identity_loss(margin.sum(1).mean() + 0.0005 * reconstruction, "none")


def glyphs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    templates = torch.zeros(4, 12, 12)
    templates[0, 2:10, 5:7] = templates[1, 5:7, 2:10] = 1
    templates[2] = torch.eye(12)
    templates[3, 2:10, 2:4] = templates[3, 8:10, 2:10] = 1
    labels = torch.randint(4, (count,), generator=generator)
    shifts = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    pictures = [torch.roll(templates[label], shift, dims=(0, 1)) for label, shift in zip(labels, shifts)]
    return (torch.stack(pictures)[:, None] + 0.1 * torch.rand(count, 1, 12, 12, generator=generator)).clamp(
        0, 1
    ), labels


def main():
    torch.manual_seed(0)
    model = CapsNet()
    opts = poptorch.Options()
    opts.deviceIterations(4)
    opts.setAvailableMemoryProportion({"IPU0": 0.5})
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
    dataset = torch.utils.data.TensorDataset(*glyphs(640, seed=0))
    loader = poptorch.DataLoader(opts, dataset, batch_size=16, shuffle=True)
    first = last = None
    for _ in range(2):
        for images, labels in loader:
            _, loss = training_model(images, labels)
            last = loss.item()
            first = last if first is None else first
    print(f"loss {first:.3f} -> {last:.3f}")

    inference_model = poptorch.inferenceModel(model)
    images, labels = glyphs(64, seed=1)
    accuracy = (inference_model(images).argmax(dim=1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.2%}")
    return 0 if last < 0.5 * first and accuracy > 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
