"""Skip-gram with negative sampling: words of one topic end near each other."""

import random

import torch
from torch import nn
from torch.nn.functional import logsigmoid, normalize

import poptorch
from poptorch.optim import SGD

TOPICS, PER_TOPIC, NEGATIVES, DIM = 3, 5, 4, 12
WORDS = TOPICS * PER_TOPIC  # numbered topic by topic


class PairDataset(torch.utils.data.IterableDataset):
    """A stream of (word, neighbour, words drawn at random)."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        rng = random.Random(0)
        for _ in range(self.length):
            first = PER_TOPIC * rng.randrange(TOPICS)
            centre, context = rng.sample(range(first, first + PER_TOPIC), 2)
            negatives = [rng.randrange(WORDS) for _ in range(NEGATIVES)]
            yield torch.tensor(centre), torch.tensor(context), torch.tensor(negatives)


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre, self.context = nn.Embedding(WORDS, DIM), nn.Embedding(WORDS, DIM)
        nn.init.uniform_(self.centre.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.context.weight)

    def forward(self, centre, context, negatives):
        v = self.centre(centre)
        positive = (v * self.context(context)).sum(-1)
        negative = torch.bmm(self.context(negatives), v.unsqueeze(-1)).squeeze(-1)
        return poptorch.identity_loss(-logsigmoid(positive) - logsigmoid(-negative).sum(-1), reduction="mean")


torch.manual_seed(0)
opts = poptorch.Options().deviceIterations(20).outputMode(poptorch.OutputMode.Final).showCompilationProgressBar(False)
loader = poptorch.DataLoader(opts, PairDataset(16 * 20 * 12), batch_size=16, drop_last=True)
model = SkipGram()
optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9, dampening=0.0, use_combined_accum=True)
trainer = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
for number, (centre, context, negatives) in enumerate(loader):
    loss = trainer(centre, context, negatives)
    print(f"call {number:2d}: loss {loss:.3f}")
    if number == 6:
        optimizer.param_groups[0]["lr"] = 0.1
        trainer.setOptimizer(optimizer)

trainer.copyWeightsToHost()
vectors = normalize(model.centre.weight.detach(), dim=-1)
nearest = (vectors @ vectors.t()).fill_diagonal_(-1).argmax(1)
assert (nearest // PER_TOPIC == torch.arange(WORDS) // PER_TOPIC).sum() >= 13
