"""Sentence embeddings trained with in-batch negatives, then with triplets: two executors share one encoder."""

import collections

import torch
from program_kit import Over, check_learned, train
from torch import nn
from torch.nn import functional as F

import poptorch

VOCAB, LENGTH, DIM, TOPICS, REPLICAS = 65, 6, 32, 8, 2
Triplet = collections.namedtuple("Triplet", ["anchor", "positive", "negative"])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.layer = nn.TransformerEncoderLayer(DIM, 4, 64, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, tokens):
        mask = (tokens > 0).unsqueeze(-1).float()
        x = self.layer(self.embedding(tokens))
        return F.normalize((x * mask).sum(1) / mask.sum(1).clamp_min(1e-6), p=2, dim=-1)


class InBatchNegatives(Over):
    def forward(self, anchor, positive):
        scores = self.network(anchor) @ self.network(positive).t() / 0.1
        return F.cross_entropy(scores, torch.arange(scores.shape[0]))


class Triplets(Over):
    def forward(self, triplet):
        a, p, n = torch.chunk(self.network(torch.cat(triplet)), 3)
        loss = nn.TripletMarginLoss(margin=0.5)(a, p, n)
        return F.cosine_similarity(a, p), F.cosine_similarity(a, n), poptorch.identity_loss(loss, "none")


def sentences(topics):
    tokens = 1 + topics[:, None] * TOPICS + torch.randint(0, TOPICS, (len(topics), LENGTH))
    return tokens.masked_fill(torch.rand(tokens.shape) < 0.15, 0)


torch.manual_seed(0)
encoder, topics = Encoder(), torch.arange(TOPICS)
opts = poptorch.Options().replicationFactor(REPLICAS).outputMode(poptorch.OutputMode.All)
optimizer = poptorch.optim.Adam(encoder.parameters(), lr=2e-3)
contrastive = poptorch.trainingModel(InBatchNegatives(encoder), opts.clone(), optimizer)
pairs = ([sentences(topics.repeat(REPLICAS)) for _ in range(2)] for _ in range(25))
check_learned(train(contrastive, pairs), 0.8)
contrastive.detachFromDevice()
optimizer = poptorch.optim.SGD(encoder.parameters(), lr=0.05)
triplet = poptorch.trainingModel(Triplets(encoder), poptorch.Options(), optimizer)
for _ in range(10):
    near, far, _ = triplet(Triplet(*(sentences(part) for part in (topics, topics, topics.roll(1)))))
triplet.detachFromDevice()
assert near.mean() > far.mean() + 0.2
