"""A variational autoencoder: noise drawn on the device, two terms of the loss, and a decoder used alone."""

import torch
from program_kit import check_close, inferred
from torch import nn

import poptorch

LATENT, HIDDEN, SIDE = 4, 48, 10


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(SIDE * SIDE, HIDDEN)
        self.mu, self.logvar = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)
        layers = nn.Linear(LATENT, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIDE * SIDE), nn.Sigmoid()
        self.decoder = nn.Sequential(*layers, nn.Unflatten(1, (1, SIDE, SIDE)))

    def reparameterize(self, mu, logvar):
        if self.training:
            std = torch.exp(0.5 * logvar)
            return torch.normal(torch.zeros_like(std), torch.ones_like(std)) * std + mu
        return mu

    def forward(self, x):
        h = torch.tanh(self.hidden(x.flatten(1)))
        mu, logvar = self.mu(h), self.logvar(h)
        reconstruction = self.decoder(self.reparameterize(mu, logvar))
        if not self.training:
            return reconstruction, mu
        bce = nn.functional.binary_cross_entropy(reconstruction, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = poptorch.identity_loss(bce + kld, reduction="sum")
        return reconstruction, bce.detach(), kld.detach(), loss


def bars(count):
    images = torch.zeros(count, 1, SIDE, SIDE)
    for image in images:
        position = int(torch.randint(0, SIDE - 2, ()))
        region = image[0, :, position : position + 3] if torch.rand(()) < 0.5 else image[0, position : position + 3]
        region.fill_(1)
    return images


torch.manual_seed(0)
model = VAE()
opts = poptorch.Options().randomSeed(0).replicationFactor(2).outputMode(poptorch.OutputMode.Sum)
opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
loader = poptorch.DataLoader(opts, bars(512), batch_size=16, shuffle=True)
trainer = poptorch.trainingModel(model.train(), opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
history = []
for _ in range(10):
    totals = torch.zeros(3)
    for images in loader:
        totals += torch.stack([part.sum() for part in trainer(images)[1:]])
    history.append(totals / len(loader.dataset))
check_close(history[-1][0] + history[-1][1], history[-1][2], 1e-3)
assert history[-1][2] < 0.7 * history[0][2]

images = bars(32)
reconstruction, _ = inferred(model, images)
assert (reconstruction - images).abs().mean() < 0.2
pictures = poptorch.inferenceModel(model.decoder)(torch.randn(6, LATENT))
assert pictures.shape == (6, 1, SIDE, SIDE)
assert 0 <= pictures.min() <= pictures.max() <= 1
