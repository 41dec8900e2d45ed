"""One-shot recognition: a shared encoder trained on triplets, and retrieval by distance on the host."""

import argparse
import random

import torch
import torch.nn as nn

import poptorch


class TripletDataset(torch.utils.data.Dataset):
    def __init__(self, identities=12, length=512, noise=0.5, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.faces = torch.randn(identities, 1, 12, 12, generator=generator)
        self.length, self.noise = length, noise

    def __len__(self):
        return self.length

    def sample(self, identity):
        return self.faces[identity] + self.noise * torch.randn(1, 12, 12)

    def __getitem__(self, index):
        anchor, other = random.sample(range(len(self.faces)), 2)
        return self.sample(anchor), self.sample(anchor), self.sample(other)


class Encoder(nn.Module):
    def __init__(self, features=16):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.LeakyReLU(0.1)
        )
        self.projection = nn.Linear(16 * 3 * 3, features)

    def forward(self, x):
        x = self.convolutions(x).flatten(start_dim=1)
        return nn.functional.normalize(self.projection(x), p=2, dim=-1)


class SiameseNetwork(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.encoder = Encoder()
        self.criterion = nn.TripletMarginLoss(margin=margin, p=2)

    def forward(self, anchor, positive, negative):
        encoded = [self.encoder(x) for x in (anchor, positive, negative)]
        loss = self.criterion(*encoded)
        good = (encoded[0] - encoded[1]).norm(dim=1) < (encoded[0] - encoded[2]).norm(dim=1)
        return good.to(torch.float32).mean(), poptorch.identity_loss(loss, reduction="mean")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--margin", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(3)
    random.seed(3)

    dataset = TripletDataset()
    opts = poptorch.Options().deviceIterations(2)
    opts.replicationFactor(2)
    opts.outputMode(poptorch.OutputMode.Sum)
    loader = poptorch.DataLoader(
        opts,
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=1,
        worker_init_fn=lambda worker: random.seed(worker),
    )
    model = SiameseNetwork(args.margin)
    optimizer = poptorch.optim.RMSprop(model.parameters(), lr=1e-3)
    training = poptorch.trainingModel(model, opts, optimizer)
    history = []
    calls = opts.device_iterations * opts.replication_factor
    for epoch in range(args.epochs):
        total = 0.0
        for triplet in loader:
            good, loss = training(*triplet)
            total += loss.sum().item() / calls
        history.append(total / len(loader))
        print(f"epoch {epoch + 1}: loss {history[-1]:.4f}, last batch ordered rightly {good.sum().item() / calls:.0%}")

    embed = poptorch.inferenceModel(model.encoder.eval())
    gallery = embed(dataset.faces)
    queries = embed(torch.stack([dataset.sample(i) for i in range(len(dataset.faces))]))
    nearest = torch.cdist(queries, gallery).argmin(dim=1)
    accuracy = (nearest == torch.arange(len(dataset.faces))).float().mean().item()
    print(f"one-shot accuracy {accuracy:.0%}")
    assert history[-1] < 0.5 * history[0], history
    assert accuracy > 0.7


if __name__ == "__main__":
    main()
