"""Knowledge-graph embeddings (TransE) with a shard of the entities on each replica, and filtered ranks on the host."""

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn

import poptorch


@dataclasses.dataclass
class Settings:
    entities: int = 24
    relations: int = 3
    dim: int = 16
    shards: int = 2
    positives: int = 8
    negatives: int = 8
    margin: float = 4.0
    lr: float = 0.05
    steps: int = 40


class Batch(NamedTuple):
    head: torch.Tensor
    relation: torch.Tensor
    tail: torch.Tensor
    negative: torch.Tensor


class TransE(nn.Module):
    """Each replica holds the entities of its own shard; triples within a shard need no other one."""

    def __init__(self, settings):
        super().__init__()
        rows = settings.entities // settings.shards
        self.entity = nn.Parameter(0.3 * torch.randn(settings.shards, rows, settings.dim))
        self.relation = nn.Embedding(settings.relations, settings.dim)
        self.margin = settings.margin

    def distance(self, head, relation, tail):
        return torch.norm(head + relation - tail, p=1, dim=-1)

    def forward(self, batch):
        table = self.entity.view(-1, self.entity.shape[-1])
        head, tail = (torch.index_select(table, 0, i) for i in (batch.head, batch.tail))
        relation = self.relation(batch.relation)
        corrupt = torch.index_select(table, 0, batch.negative.view(-1)).view(*batch.negative.shape, -1)
        positive = self.distance(head, relation, tail)
        negative = self.distance(head.unsqueeze(1), relation.unsqueeze(1), corrupt)
        weight = torch.softmax(-negative, dim=-1).detach()
        loss = -nn.functional.logsigmoid(self.margin - positive)
        loss = loss - (weight * nn.functional.logsigmoid(negative - self.margin)).sum(dim=-1)
        return poptorch.identity_loss(loss, reduction="sum")


def sample(settings, generator, calls):
    """Triples (h, r, (h + r + 1) mod shard size) within each shard, one shard for each replica."""
    rows = settings.entities // settings.shards
    count = settings.positives * settings.shards * calls
    head = generator.integers(0, rows, count)
    relation = generator.integers(0, settings.relations, count)
    tail = (head + relation + 1) % rows
    negative = generator.integers(0, rows, (count, settings.negatives))
    return Batch(*(torch.as_tensor(part, dtype=torch.int32) for part in (head, relation, tail, negative)))


def main():
    settings = Settings()
    torch.manual_seed(0)
    generator = np.random.default_rng(0)

    opts = poptorch.Options()
    opts.replicationFactor(settings.shards)
    opts.deviceIterations(2)
    opts.outputMode(poptorch.OutputMode.All)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    model = TransE(settings)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=settings.lr)
    trainer = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    trainer.entity.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)
    history = []
    for step in range(settings.steps):
        loss = trainer(sample(settings, generator, calls=2))
        history.append(loss.mean().item())
        if step % 10 == 9:
            print(f"step {step + 1}: {history[-1]:.3f}")
    trainer.detachFromDevice()

    ranks = []
    for shard in model.entity.detach():
        rows = shard.shape[0]
        for r in range(settings.relations):
            head = torch.arange(rows)
            scores = torch.cdist(shard + model.relation.weight[r].detach(), shard, p=1)
            truth = scores.gather(1, ((head + r + 1) % rows)[:, None])
            ranks.append((scores < truth).sum(dim=1) + 1)
    reciprocal = (1.0 / torch.cat(ranks).float()).mean().item()
    print(f"mean reciprocal rank {reciprocal:.3f}")
    assert not torch.equal(model.entity[0], model.entity[1])
    assert history[-1] < 0.6 * history[0]
    assert reciprocal > 0.4


if __name__ == "__main__":
    main()
