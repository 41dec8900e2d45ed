"""A conditional random field over an LSTM: the forward algorithm in training, Viterbi decoding in inference."""

import torch
from program_kit import check_learned, train
from torch import nn

import poptorch

TAGS, LENGTH, VOCAB = 4, 7, 20


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def numerator(self, emissions, tags, mask):
        chosen = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)
        score = self.start[tags[:, 0]] + chosen[:, 0]
        for t in range(1, emissions.size(1)):
            score = score + (self.transitions[tags[:, t - 1], tags[:, t]] + chosen[:, t]) * mask[:, t]
        last = tags.gather(1, (mask.sum(1).long() - 1).unsqueeze(1)).squeeze(1)
        return score + self.end[last]

    def denominator(self, emissions, mask):
        score = self.start + emissions[:, 0]
        for t in range(1, emissions.size(1)):
            following = torch.logsumexp(score.unsqueeze(2) + self.transitions + emissions[:, t].unsqueeze(1), dim=1)
            score = torch.where(mask[:, t].unsqueeze(1) > 0, following, score)
        return torch.logsumexp(score + self.end, dim=1)

    def decode(self, emissions, mask):
        score, history = self.start + emissions[:, 0], []
        for t in range(1, emissions.size(1)):
            best, index = (score.unsqueeze(2) + self.transitions).max(dim=1)
            score = torch.where(mask[:, t].unsqueeze(1) > 0, best + emissions[:, t], score)
            identity = torch.arange(emissions.size(-1)).expand_as(index)
            history.append(torch.where(mask[:, t].unsqueeze(1) > 0, index, identity))
        path = [(score + self.end).argmax(1, keepdim=True)]
        for index in reversed(history):
            path.insert(0, index.gather(1, path[0]))
        return torch.cat(path, dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(VOCAB, 16), nn.LSTM(16, 16, batch_first=True)
        self.emissions, self.crf = nn.Linear(16, TAGS), CRF(TAGS)

    def forward(self, tokens, mask, tags=None):
        emissions = self.emissions(self.lstm(self.embedding(tokens))[0])
        if tags is None:
            return self.crf.decode(emissions, mask), emissions
        likelihood = self.crf.numerator(emissions, tags, mask) - self.crf.denominator(emissions, mask)
        return poptorch.identity_loss(-likelihood, reduction="mean")


def make(n):
    tokens = torch.randint(0, VOCAB, (n, LENGTH))
    return tokens, (torch.arange(LENGTH)[None] < torch.randint(3, LENGTH + 1, (n, 1))).float(), tokens // 5


torch.manual_seed(0)
model = Tagger()
opts = poptorch.Options().deviceIterations(2)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=2e-2))
check_learned(train(training, (make(32) for _ in range(25))), 0.3)
training.detachFromDevice()

tokens, mask, tags = make(32)
path, emissions = poptorch.inferenceModel(model.eval())(tokens, mask)
assert ((path == tags) * mask.bool()).sum() / mask.sum() > 0.9
# The decoded path of one sequence is the best among all of them.
paths, ones = torch.cartesian_prod(*[torch.arange(TAGS)] * 5), torch.ones(TAGS**5, 5)
best = paths[model.crf.numerator(emissions[:1, :5].expand(len(paths), -1, -1), paths, ones).argmax()]
assert torch.equal(best, model.crf.decode(emissions[:1, :5], ones[:1])[0])
