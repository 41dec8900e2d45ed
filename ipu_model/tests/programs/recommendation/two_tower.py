"""Retrieval with two towers on two IPUs and in-batch negatives; the towers are exported and used apart."""

import torch
from program_kit import check_close, check_learned, train
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import poptorch

USERS, ITEMS, TASTES, BATCH = 40, 24, 6, 16


def tower(count):
    return nn.Sequential(nn.Embedding(count, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = tower(USERS), tower(ITEMS)

    def forward(self, user, item):
        with poptorch.Block("user", ipu_id=0):
            u = normalize(self.user(user), dim=-1)
        with poptorch.Block("item", ipu_id=1):
            scores = u @ normalize(self.item(item), dim=-1).t() / 0.1
            # Other items of the batch that the user likes as well do not count as wrong.
            row, taste = torch.arange(len(item)), item % TASTES
            same = (taste[None, :] == taste[:, None]) & (row[None, :] != row[:, None])
            loss = cross_entropy(scores.masked_fill(same, -1e4), row)
            return poptorch.identity_loss(loss, reduction="none")


def batch():
    user = torch.randint(0, USERS, (4 * BATCH,))
    return user, user % TASTES + TASTES * torch.randint(0, ITEMS // TASTES, user.shape)


torch.manual_seed(0)
model = TwoTowers()
opts = poptorch.Options()
opts.Training.gradientAccumulation(4)
opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=1e-2))
check_learned(train(training, (batch() for _ in range(60))), 0.6)
training.destroy()
vectors = []
for part, count in ((model.user, USERS), (model.item, ITEMS)):
    poptorch.inferenceModel(part.eval()).compileAndExport("tower.poptorch", torch.arange(count))
    vectors.append(normalize(poptorch.load("tower.poptorch")(torch.arange(count)), dim=-1))
    check_close(vectors[-1], normalize(part(torch.arange(count)), dim=-1))
best = (vectors[0] @ vectors[1].t()).argmax(dim=1)
assert (best % TASTES == torch.arange(USERS) % TASTES).float().mean() > 0.7
