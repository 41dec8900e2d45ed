"""Words from characters: convolutions of several widths, max over time, highway layers, then an LSTM."""

from itertools import chain

import torch
from program_kit import accuracy, train
from torch import nn

import poptorch

WORDS = [stem + ending for stem in ("run", "jump", "walk", "look") for ending in ("", "s", "ing")]
LETTERS = "_" + "".join(sorted(set("".join(WORDS))))
SPELLED = torch.tensor([[LETTERS.index(c) for c in word.ljust(7, "_")] for word in WORDS], dtype=torch.int16)
SIZE = 32


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.gate = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return torch.addcmul(x * (1 - gate), torch.relu(self.proj(x)), gate)


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.chars = nn.Embedding(len(LETTERS), 8, padding_idx=0)
        self.convs = nn.ModuleDict({f"width{k}": nn.Conv1d(8, n, k) for k, n in ((2, 8), (3, 8), (4, 16))})
        self.highways, self.lstm = nn.Sequential(Highway(), Highway()), nn.LSTM(SIZE, SIZE)
        self.out = nn.Linear(SIZE, len(WORDS))

    def forward(self, characters, words=None):
        x = self.chars(characters.flatten(0, 1)).transpose(1, 2)
        x = self.highways(torch.cat([conv(x).amax(dim=-1) for conv in self.convs.values()], dim=1))
        scores = self.out(self.lstm(x.view(*characters.shape[:2], SIZE).transpose(0, 1))[0].transpose(0, 1))
        if words is None:
            return scores
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        return scores, poptorch.identity_loss(loss, reduction="none")


def batch(size):
    index = torch.randint(0, len(WORDS), (size, 5))
    return SPELLED[index].int(), index


torch.manual_seed(0)
model = CharModel()
opts = poptorch.Options().deviceIterations(2).setAvailableMemoryProportion({"IPU0": 0.25})
parameters = [
    {"params": chain(model.chars.parameters(), model.convs.parameters()), "lr": 2e-2},
    {"params": chain(model.highways.parameters(), model.lstm.parameters())},
    {"params": [*model.out.parameters()], "betas": (0.8, 0.99)},
]
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(parameters, lr=1e-2))
train(training, (batch(2 * 16) for _ in range(40)))
training.detachFromDevice()
characters, words = batch(8)
assert accuracy(poptorch.inferenceModel(model.eval())(characters), words) > 0.9
