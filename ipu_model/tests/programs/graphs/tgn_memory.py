"""Temporal graph network: each node has a memory that a GRU cell updates; interactions arrive in order of time."""

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


class TimeEncoder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.lin = nn.Linear(1, channels)

    def forward(self, t):
        return self.lin(t.unsqueeze(-1)).cos()


class NodeMemory(nn.Module):
    """Memory and time of the last update are buffers: they stay on the device from call to call."""

    def __init__(self, nodes, dim, time_dim):
        super().__init__()
        self.register_buffer("memory", torch.zeros(nodes, dim))
        self.register_buffer("last_update", torch.zeros(nodes))
        self.time = TimeEncoder(time_dim)
        self.gru = nn.GRUCell(2 * dim + time_dim, dim)

    def forward(self, source, destination, t):
        own, other = self.memory[source], self.memory[destination]
        encoded = self.time(t - self.last_update[source])
        return self.gru(torch.cat([own, other, encoded], dim=-1), own)

    def store(self, nodes, values, t):
        self.memory.index_copy_(0, nodes, values.detach())
        self.last_update.index_copy_(0, nodes, t)


class TGN(nn.Module):
    def __init__(self, users, items, dim=16, time_dim=8):
        super().__init__()
        self.users = users
        self.memory = NodeMemory(users + items, dim, time_dim)
        self.identity = nn.Embedding(users + items, dim)
        self.predictor = nn.Sequential(nn.Linear(4 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def score(self, source, destination, z_source, z_destination):
        parts = [z_source, z_destination, self.identity(source), self.identity(destination)]
        return self.predictor(torch.cat(parts, dim=-1)).squeeze(-1)

    def forward(self, source, destination, negative, t):
        z_source = self.memory(source, destination, t)
        z_destination = self.memory(destination, source, t)
        positive = self.score(source, destination, z_source, z_destination)
        negative = self.score(source, negative, z_source, self.memory.memory[negative])
        loss = F.binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
        loss = loss + F.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
        self.memory.store(source, z_source, t)
        self.memory.store(destination, z_destination, t)
        if not self.training:
            return torch.sigmoid(positive), torch.sigmoid(negative)
        return torch.sigmoid(positive), torch.sigmoid(negative), poptorch.identity_loss(loss, reduction="none")

    @torch.no_grad()
    def reset(self):
        self.memory.memory.zero_()
        self.memory.last_update.zero_()


class Interactions:
    """Users prefer the items of their own parity. Each batch has every user at most once."""

    def __init__(self, users, items, batches, seed=0):
        generator = np.random.default_rng(seed)
        self.batches = []
        for step in range(batches):
            user = generator.permutation(users)[:8]
            item = users + 2 * generator.permutation(items // 2)[:8] + user % 2
            negative = users + 2 * generator.integers(0, items // 2, 8) + (user + 1) % 2
            time = step + np.sort(generator.random(8))
            time = torch.as_tensor(time, dtype=torch.float32)
            self.batches.append((*(torch.as_tensor(part) for part in (user, item, negative)), time))

    def __iter__(self):
        return iter(self.batches)


def main():
    args = SimpleNamespace(users=12, items=20, epochs=4)
    torch.manual_seed(0)
    model = TGN(args.users, args.items).train()
    opts = poptorch.Options()
    opts.updatableNamedBuffers(["memory.memory", "memory.last_update"])
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    data, history = Interactions(args.users, args.items, 40), []
    for epoch in range(args.epochs):
        if training_model.isCompiled():
            model.reset()
            training_model.copyNamedBuffersToDevice()
        losses = [training_model(*batch)[2].item() for batch in data]
        history.append(sum(losses) / len(losses))
        print(f"epoch {epoch}: {history[-1]:.4f}")
    training_model.detachFromDevice()
    assert float(model.memory.memory.abs().sum()) > 0
    assert float(model.memory.last_update.max()) > 39

    inference_model = poptorch.inferenceModel(model.eval())
    right = 0.0
    for batch in Interactions(args.users, args.items, 10, seed=1):
        positive, negative = inference_model(*batch)
        right += (positive > negative).float().mean().item() / 10
    print(f"ranked rightly: {right:.2%}")
    assert history[-1] < 0.7 * history[0]
    assert right > 0.8


if __name__ == "__main__":
    main()
