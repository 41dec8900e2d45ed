"""Temporal graph network: each node has a memory that a GRU cell updates; interactions arrive in order of time."""

import numpy as np
import torch
from program_kit import train
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import poptorch

USERS, ITEMS, DIM, TIME_DIM = 12, 20, 16, 8


class TGN(nn.Module):
    """Memory and time of the last update are buffers: they stay on the device from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(USERS + ITEMS, DIM))
        self.register_buffer("last_update", torch.zeros(USERS + ITEMS))
        self.time, self.gru = nn.Linear(1, TIME_DIM), nn.GRUCell(2 * DIM + TIME_DIM, DIM)
        self.identity = nn.Embedding(USERS + ITEMS, DIM)
        self.predictor = nn.Sequential(nn.Linear(4 * DIM, DIM), nn.ReLU(), nn.Linear(DIM, 1), nn.Flatten(0))

    def updated(self, source, destination, t):
        own, other = self.memory[source], self.memory[destination]
        encoded = self.time((t - self.last_update[source]).unsqueeze(-1)).cos()
        return self.gru(torch.cat([own, other, encoded], dim=-1), own)

    def forward(self, source, destination, negative, t):
        z_source, z_destination = self.updated(source, destination, t), self.updated(destination, source, t)
        pairs = (destination, z_destination, 1.0), (negative, self.memory[negative], 0.0)
        scores, loss = [], 0
        for other, z_other, truth in pairs:
            score = self.predictor(torch.cat([z_source, z_other, self.identity(source), self.identity(other)], dim=-1))
            loss = loss + binary_cross_entropy_with_logits(score, torch.full_like(score, truth))
            scores.append(torch.sigmoid(score))
        for nodes, values in ((source, z_source), (destination, z_destination)):
            self.memory.index_put_((nodes,), values.detach())
            self.last_update.index_put_((nodes,), t)
        return (*scores, poptorch.identity_loss(loss, reduction="none")) if self.training else tuple(scores)


def interactions(batches, seed):
    """Users prefer the items of their own parity. Each batch has every user at most once."""
    generator = np.random.default_rng(seed)
    for step in range(batches):
        user = generator.permutation(USERS)[:8]
        item = USERS + 2 * generator.permutation(ITEMS // 2)[:8] + user % 2
        negative = USERS + 2 * generator.integers(0, ITEMS // 2, 8) + (user + 1) % 2
        time = torch.as_tensor(step + np.sort(generator.random(8)), dtype=torch.float32)
        yield (*(torch.as_tensor(part) for part in (user, item, negative)), time)


torch.manual_seed(0)
model = TGN().train()
opts = poptorch.Options().updatableNamedBuffers(["memory", "last_update"])
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
history = []
for _ in range(4):
    if training.isCompiled():
        model.memory.zero_()
        model.last_update.zero_()
        training.copyNamedBuffersToDevice()
    history.append(sum(train(training, interactions(40, seed=0))))
training.detachFromDevice()
assert history[-1] < 0.7 * history[0]
assert float(model.memory.abs().sum()) > 0
assert float(model.last_update.max()) > 39
inference = poptorch.inferenceModel(model.eval())
scores = [inference(*batch) for batch in interactions(10, seed=1)]
assert sum((positive > negative).float().mean().item() for positive, negative in scores) / 10 > 0.8
