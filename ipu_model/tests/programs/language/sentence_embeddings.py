"""Sentence embeddings trained with in-batch negatives and with triplets, two heads on shared weights.

The batch is split over replicas, and the encoder is shared by two executors.
"""

import collections
import types

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

cfg = types.SimpleNamespace(vocab=64, length=6, dim=32, topics=8, batch=8, margin=0.5, temperature=0.1, replicas=2)
Pair = collections.namedtuple("Pair", ["anchor", "positive"])
Triplet = collections.namedtuple("Triplet", ["anchor", "positive", "negative"])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(cfg.vocab, cfg.dim)
        self.layer = nn.TransformerEncoderLayer(cfg.dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, tokens):
        mask = (tokens > 0).unsqueeze(-1).float()
        x = self.layer(self.embedding(tokens))
        return F.normalize((x * mask).sum(1) / mask.sum(1).clamp_min(1e-6), p=2, dim=-1)


class InBatchNegatives(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pair):
        a, p = self.encoder(pair.anchor), self.encoder(pair.positive)
        scores = a @ p.t() / cfg.temperature
        return F.cross_entropy(scores, torch.arange(scores.shape[0]))


class Triplets(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.loss = nn.TripletMarginLoss(margin=cfg.margin)

    def forward(self, triplet):
        a, p, n = torch.chunk(self.encoder(torch.cat(triplet)), 3)
        return poptorch.identity_loss(self.loss(a, p, n), "none"), F.cosine_similarity(a, p), F.cosine_similarity(a, n)


def sentences(topics):
    per = (cfg.vocab - 1) // cfg.topics
    tokens = 1 + topics[:, None] * per + torch.randint(0, per, (len(topics), cfg.length))
    tokens[torch.rand(tokens.shape) < 0.15] = 0
    return tokens


def different_topics(rows):
    return torch.stack([torch.randperm(cfg.topics) for _ in range(rows // cfg.batch)]).flatten()


def main():
    torch.manual_seed(0)
    encoder = Encoder()
    opts = poptorch.Options()
    opts.replicationFactor(cfg.replicas)
    opts.outputMode(poptorch.OutputMode.All)
    contrastive_model = InBatchNegatives(encoder)
    contrastive = poptorch.trainingModel(
        contrastive_model, opts.clone(), poptorch.optim.Adam(encoder.parameters(), lr=2e-3)
    )
    losses = []
    for _ in range(25):
        topics = different_topics(cfg.batch * cfg.replicas)
        losses.append(contrastive(Pair(sentences(topics), sentences(topics))).mean().item())
    print(f"in-batch negatives: {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < 0.8 * losses[0]
    contrastive.detachFromDevice()

    single = poptorch.Options()
    triplet = poptorch.trainingModel(Triplets(encoder), single, poptorch.optim.SGD(encoder.parameters(), lr=0.05))
    for _ in range(20):
        topics = torch.randint(0, cfg.topics, (16,))
        others = (topics + torch.randint(1, cfg.topics, (16,))) % cfg.topics
        loss, near, far = triplet(Triplet(sentences(topics), sentences(topics), sentences(others)))
    print(f"triplets: loss {loss.item():.3f}, near {near.mean():.2f}, far {far.mean():.2f}")
    assert near.mean() > far.mean() + 0.3
    triplet.destroy()

    encoder.eval()
    embed = poptorch.inferenceModel(encoder)
    topics = torch.arange(cfg.topics)
    corpus, queries = embed(sentences(topics)), embed(sentences(topics))
    assert (torch.cdist(queries, corpus).argmin(1) == topics).sum() >= 7


if __name__ == "__main__":
    main()
