"""A conditional random field over an LSTM: the forward algorithm in training, Viterbi decoding in inference."""

import torch
from torch import nn

import poptorch

TAGS, LENGTH, VOCAB = 4, 7, 20


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def numerator(self, emissions, tags, mask):
        score = self.start[tags[:, 0]] + emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, emissions.size(1)):
            step = self.transitions[tags[:, t - 1], tags[:, t]] + emissions[:, t].gather(1, tags[:, t : t + 1]).squeeze(
                1
            )
            score = score + step * mask[:, t]
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
        tag = (score + self.end).argmax(1, keepdim=True)
        path = [tag]
        for index in reversed(history):
            tag = index.gather(1, tag)
            path.insert(0, tag)
        return torch.cat(path, dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.emissions = nn.Linear(16, TAGS)
        self.crf = CRF(TAGS)

    def forward(self, tokens, mask, tags=None):
        emissions = self.emissions(self.lstm(self.embedding(tokens))[0])
        if tags is None:
            return self.crf.decode(emissions, mask)
        likelihood = self.crf.numerator(emissions, tags, mask) - self.crf.denominator(emissions, mask)
        return poptorch.identity_loss(-likelihood, reduction="mean")


def make(n):
    tokens = torch.randint(0, VOCAB, (n, LENGTH))
    tags = tokens // 5
    lengths = torch.randint(3, LENGTH + 1, (n, 1))
    mask = (torch.arange(LENGTH)[None] < lengths).float()
    return tokens, mask, tags


def brute_force(emissions, crf):
    """The best path of one sequence among all of them."""
    paths = torch.cartesian_prod(*[torch.arange(TAGS)] * emissions.size(0))
    scores = crf.numerator(emissions.expand(len(paths), -1, -1), paths, torch.ones(len(paths), emissions.size(0)))
    return paths[scores.argmax()]


torch.manual_seed(0)
model = Tagger()
opts = poptorch.Options()
opts.deviceIterations(2)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=2e-2))
losses = [training(*make(32)).item() for _ in range(25)]
print(f"negative log-likelihood {losses[0]:.2f} -> {losses[-1]:.2f}")
training.detachFromDevice()

model.eval()
inference = poptorch.inferenceModel(model)
tokens, mask, tags = make(32)
path = inference(tokens, mask)
right = ((path == tags) * mask.bool()).sum() / mask.sum()
print(f"{100 * right:.0f} % of the tags right")

with torch.no_grad():
    full = int(mask.sum(1).argmax())
    size = int(mask[full].sum())
    emissions = model.emissions(model.lstm(model.embedding(tokens[full : full + 1]))[0])[0, :5]
    best = brute_force(emissions, model.crf)
    decoded = model.crf.decode(emissions.unsqueeze(0), torch.ones(1, 5))[0]
assert torch.equal(best, decoded)
assert losses[-1] < 0.3 * losses[0] and right > 0.9
