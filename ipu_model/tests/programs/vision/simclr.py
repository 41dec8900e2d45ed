"""SimCLR: contrastive pretraining with LARS-like scaling left out, then a linear probe on frozen features."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

CLASSES, CHANNELS, SIZE = 4, 3, 12
PRETRAIN_STEPS, PROBE_STEPS, BATCH = 25, 30, 16
TEMPERATURE = 0.2


class TwoViews(torch.utils.data.Dataset):
    """Each item is one picture under two random croppings, flips and noises."""

    def __init__(self, length):
        self.length = length
        self.prototypes = torch.randn(CLASSES, CHANNELS, SIZE + 4, SIZE + 4, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return self.length

    def augment(self, image):
        top, left = torch.randint(0, 5, (2,)).tolist()
        view = image[:, top : top + SIZE, left : left + SIZE]
        if torch.rand(()) < 0.5:
            view = torch.flip(view, dims=[2])
        return view * torch.empty(1).uniform_(0.7, 1.3) + 0.1 * torch.randn_like(view)

    def __getitem__(self, index):
        label = index % CLASSES
        image = self.prototypes[label]
        return self.augment(image), self.augment(image), label


class SimCLR(nn.Module):
    def __init__(self, width=32, projection=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(CHANNELS, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, projection))

    def forward(self, view1, view2):
        z = F.normalize(self.projector(self.encoder(torch.cat([view1, view2]))), dim=1)
        return self.nt_xent(z)

    def nt_xent(self, z):
        rows = z.shape[0]
        similarity = torch.matmul(z, z.t()) / TEMPERATURE
        similarity = similarity.masked_fill(torch.eye(rows, dtype=torch.bool), -10000.0)
        target = torch.roll(torch.arange(rows), rows // 2)
        return F.cross_entropy(similarity, target)


class LinearProbe(nn.Module):
    def __init__(self, encoder, features):
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(features, CLASSES)

    def forward(self, images, labels=None):
        with torch.no_grad():
            features = self.encoder(images)
        logits = self.classifier(features)
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits, labels)


def pretrain(model):
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(1)
    data = TwoViews(BATCH * PRETRAIN_STEPS)
    loader = poptorch.DataLoader(
        opts,
        data,
        batch_size=BATCH,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
        async_options={
            "early_preload": True,
            "buffer_size": 2,
            "sharing_strategy": poptorch.SharingStrategy.SharedMemory,
        },
    )
    optimizer = poptorch.optim.LAMB(model.parameters(), lr=0.02, weight_decay=1e-4, bias_correction=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: math.cos(0.5 * math.pi * s / PRETRAIN_STEPS))
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for view1, view2, _ in loader:
        losses.append(training_model(view1, view2).item())
        schedule.step()
        training_model.setOptimizer(optimizer)
    loader.terminate()
    training_model.destroy()
    return losses


def main():
    torch.manual_seed(0)
    model = SimCLR().train()
    losses = pretrain(model)
    print(f"contrastive loss {losses[0]:.3f} -> {losses[-1]:.3f} (chance: {math.log(2 * BATCH - 1):.3f})")

    probe = LinearProbe(model.encoder.eval(), features=128)
    frozen = [p.detach().clone() for p in probe.encoder.parameters()]
    optimizer = poptorch.optim.Adam(probe.classifier.parameters(), lr=0.02)
    training_model = poptorch.trainingModel(probe, optimizer=optimizer)
    data = TwoViews(BATCH * PROBE_STEPS)
    accuracy = 0.0
    for images, _, labels in torch.utils.data.DataLoader(data, batch_size=BATCH):
        logits, _ = training_model(images, labels)
        accuracy = 0.8 * accuracy + 0.2 * (logits.argmax(dim=-1) == labels).float().mean().item()
    training_model.copyWeightsToHost()
    print(f"running accuracy of the probe {accuracy:.2%}")
    for before, after in zip(frozen, probe.encoder.parameters()):
        assert torch.equal(before, after)
    assert sum(losses[-3:]) < sum(losses[:3])
    assert accuracy > 0.6


if __name__ == "__main__":
    main()
