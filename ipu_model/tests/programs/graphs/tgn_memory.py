"""Temporal graph network: each node has a memory that a GRU cell updates; interactions arrive in order of time."""

import numpy as np
import torch
from program_kit import train
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import poptorch

USERS, ITEMS, DIM, TIME_DIM = 12, 20, 16, 8


class NodeMemory(nn.Module):
    """Memory and time of the last update are buffers: they stay on the device from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(USERS + ITEMS, DIM))
        self.register_buffer("last_update", torch.zeros(USERS + ITEMS))
        self.time = nn.Linear(1, TIME_DIM)
        self.gru = nn.GRUCell(2 * DIM + TIME_DIM, DIM)

    def forward(self, source, destination, t):
        own, other = self.memory[source], self.memory[destination]
        encoded = self.time((t - self.last_update[source]).unsqueeze(-1)).cos()
        return self.gru(torch.cat([own, other, encoded], dim=-1), own)

    def store(self, nodes, values, t):
        self.memory.index_copy_(0, nodes, values.detach())
        self.last_update.index_copy_(0, nodes, t)


class TGN(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.identity = NodeMemory(), nn.Embedding(USERS + ITEMS, DIM)
        self.predictor = nn.Sequential(nn.Linear(4 * DIM, DIM), nn.ReLU(), nn.Linear(DIM, 1), nn.Flatten(0))

    def score(self, source, destination, z_source, z_destination):
        parts = [z_source, z_destination, self.identity(source), self.identity(destination)]
        return self.predictor(torch.cat(parts, dim=-1))

    def forward(self, source, destination, negative, t):
        z_source, z_destination = self.memory(source, destination, t), self.memory(destination, source, t)
        positive = self.score(source, destination, z_source, z_destination)
        negative = self.score(source, negative, z_source, self.memory.memory[negative])
        loss = binary_cross_entropy_with_logits(positive, torch.ones_like(positive))
        loss = loss + binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
        self.memory.store(source, z_source, t)
        self.memory.store(destination, z_destination, t)
        scores = torch.sigmoid(positive), torch.sigmoid(negative)
        return (*scores, poptorch.identity_loss(loss, reduction="none")) if self.training else scores


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
memory = model.memory
opts = poptorch.Options().updatableNamedBuffers(["memory.memory", "memory.last_update"])
training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
history = []
for _ in range(4):
    if training_model.isCompiled():
        memory.memory.zero_()
        memory.last_update.zero_()
        training_model.copyNamedBuffersToDevice()
    history.append(sum(train(training_model, interactions(40, seed=0))))
training_model.detachFromDevice()
assert history[-1] < 0.7 * history[0]
assert float(memory.memory.abs().sum()) > 0
assert float(memory.last_update.max()) > 39

inference_model = poptorch.inferenceModel(model.eval())
scores = [inference_model(*batch) for batch in interactions(10, seed=1)]
right = sum((positive > negative).float().mean().item() for positive, negative in scores) / 10
print(f"ranked rightly: {right:.2%}")
assert right > 0.8
