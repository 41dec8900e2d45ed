"""Knowledge-graph embeddings (TransE) with a shard of the entities on each replica, and filtered ranks on the host."""

from typing import NamedTuple

import numpy as np
import torch
from program_kit import check_learned
from torch import nn
from torch.nn.functional import logsigmoid

import poptorch

SHARDS, ROWS, RELATIONS, DIM, MARGIN = 2, 12, 3, 16, 4.0


class Batch(NamedTuple):
    head: torch.Tensor
    relation: torch.Tensor
    tail: torch.Tensor
    negative: torch.Tensor


class TransE(nn.Module):
    """Each replica holds the entities of its own shard; triples within a shard need no other one."""

    def __init__(self):
        super().__init__()
        self.entity = nn.Parameter(0.3 * torch.randn(SHARDS, ROWS, DIM))
        self.relation = nn.Embedding(RELATIONS, DIM)

    def distance(self, head, relation, tail):
        return torch.norm(head + relation - tail, p=1, dim=-1)

    def forward(self, batch):
        table = self.entity.view(-1, DIM)
        head, tail = (torch.index_select(table, 0, i) for i in (batch.head, batch.tail))
        relation = self.relation(batch.relation)
        corrupt = torch.index_select(table, 0, batch.negative.view(-1)).view(*batch.negative.shape, -1)
        positive = self.distance(head, relation, tail)
        negative = self.distance(head.unsqueeze(1), relation.unsqueeze(1), corrupt)
        weight = torch.softmax(-negative, dim=-1).detach()
        loss = -logsigmoid(MARGIN - positive) - (weight * logsigmoid(negative - MARGIN)).sum(dim=-1)
        return poptorch.identity_loss(loss, reduction="sum")


def sample(generator, count):
    """Triples (h, r, (h + r + 1) mod shard size) within each shard, one shard for each replica."""
    head, relation = generator.integers(0, ROWS, count), generator.integers(0, RELATIONS, count)
    parts = head, relation, (head + relation + 1) % ROWS, generator.integers(0, ROWS, (count, 8))
    return Batch(*(torch.as_tensor(part, dtype=torch.int32) for part in parts))


torch.manual_seed(0)
generator = np.random.default_rng(0)
opts = poptorch.Options().replicationFactor(SHARDS).deviceIterations(2).outputMode(poptorch.OutputMode.All)
opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
model = TransE()
trainer = poptorch.trainingModel(model, options=opts, optimizer=poptorch.optim.Adam(model.parameters(), lr=0.05))
trainer.entity.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)
check_learned([trainer(sample(generator, 8 * SHARDS * 2)).mean().item() for _ in range(40)], 0.6)
trainer.detachFromDevice()
assert not torch.equal(model.entity[0], model.entity[1])

ranks = []
for shard in model.entity.detach():
    for r in range(RELATIONS):
        scores = torch.cdist(shard + model.relation.weight[r].detach(), shard, p=1)
        truth = scores.gather(1, ((torch.arange(ROWS) + r + 1) % ROWS)[:, None])
        ranks.append((scores < truth).sum(dim=1) + 1)
reciprocal = (1.0 / torch.cat(ranks).float()).mean().item()
print(f"mean reciprocal rank {reciprocal:.3f}")
assert reciprocal > 0.4
