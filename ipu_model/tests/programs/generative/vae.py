"""A variational autoencoder: noise drawn on the device, two terms of the loss, and a decoder used alone."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

LATENT, HIDDEN, SIDE = 4, 48, 10


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(SIDE * SIDE, HIDDEN)
        self.mu, self.logvar = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

    def forward(self, x):
        h = torch.tanh(self.hidden(x.flatten(1)))
        return self.mu(h), self.logvar(h)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIDE * SIDE))

    def forward(self, z):
        return torch.sigmoid(self.layers(z)).view(-1, 1, SIDE, SIDE)


class VAE(nn.Module):
    def __init__(self, beta=1.0):
        super().__init__()
        self.encoder, self.decoder, self.beta = Encoder(), Decoder(), beta

    def reparameterize(self, mu, logvar):
        if self.training:
            std = torch.exp(0.5 * logvar)
            return torch.normal(torch.zeros_like(std), torch.ones_like(std)) * std + mu
        return mu

    def forward(self, x):
        mu, logvar = self.encoder(x)
        reconstruction = self.decoder(self.reparameterize(mu, logvar))
        if not self.training:
            return reconstruction, mu
        bce = F.binary_cross_entropy(reconstruction, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = poptorch.identity_loss(bce + self.beta * kld, reduction="sum")
        return reconstruction, bce.detach(), kld.detach(), loss


def bars(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 1, SIDE, SIDE)
    for image, position, vertical in zip(
        images,
        torch.randint(0, SIDE - 2, (count,), generator=generator).tolist(),
        (torch.rand(count, generator=generator) < 0.5).tolist(),
    ):
        region = image[0, :, position : position + 3] if vertical else image[0, position : position + 3]
        region.fill_(1)
    return images


def main():
    torch.manual_seed(0)
    model = VAE()
    opts = poptorch.Options()
    opts.randomSeed(0)
    opts.replicationFactor(2)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    opts.outputMode(poptorch.OutputMode.Sum)
    loader = poptorch.DataLoader(opts, bars(512, seed=0), batch_size=16, shuffle=True)
    trainer = poptorch.trainingModel(model.train(), opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
    history = []
    for epoch in range(10):
        totals = torch.zeros(3)
        for images in loader:
            _, bce, kld, loss = trainer(images)
            totals += torch.stack([part.sum() for part in (bce, kld, loss)])
        history.append(totals / len(loader.dataset))
        print("epoch {}: bce {:.2f} kld {:.2f} loss {:.2f}".format(epoch, *history[-1].tolist()))
    torch.testing.assert_close(history[-1][0] + history[-1][1], history[-1][2], rtol=1e-3, atol=1e-3)

    model.eval()
    reconstructor = poptorch.inferenceModel(model)
    images = bars(32, seed=1)
    reconstruction, mu = reconstructor(images)
    expected, expected_mu = model(images)
    torch.testing.assert_close(reconstruction, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mu, expected_mu, rtol=1e-4, atol=1e-4)
    generator = poptorch.inferenceModel(model.decoder)
    pictures = generator(torch.randn(6, LATENT))
    assert pictures.shape == (6, 1, SIDE, SIDE)
    assert 0 <= pictures.min() <= pictures.max() <= 1
    error = (reconstruction - images).abs().mean().item()
    print(f"mean reconstruction error {error:.3f}")
    assert history[-1][2] < 0.7 * history[0][2]
    assert error < 0.2


if __name__ == "__main__":
    main()
