"""Words from characters: convolutions of several widths, max over time, highway layers, then an LSTM."""

from itertools import chain

import torch
from program_kit import accuracy, train
from torch import nn

import poptorch

WORDS = [stem + ending for stem in ("run", "jump", "walk", "look") for ending in ("", "s", "ing")]
LETTERS = "_" + "".join(sorted(set("".join(WORDS))))
LONGEST, SIZE = max(map(len, WORDS)), 32
SPELLED = torch.tensor([[LETTERS.index(c) for c in word.ljust(LONGEST, "_")] for word in WORDS], dtype=torch.int16)


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
        self.highways, self.lstm = nn.Sequential(Highway(), Highway()), nn.LSTM(SIZE, 32)
        self.endings, self.stems = nn.Linear(32, 3), nn.Linear(32, 4)

    def forward(self, characters, endings=None, stems=None):
        batch, length, _ = characters.shape
        x = self.chars(characters.reshape(batch * length, LONGEST)).transpose(1, 2)
        words = torch.cat([conv(x).amax(dim=-1) for conv in self.convs.values()], dim=1)
        y = self.lstm(self.highways(words).reshape(batch, length, -1).transpose(0, 1))[0].transpose(0, 1)
        outputs = self.endings(y), self.stems(y)
        if endings is None:
            return outputs
        pairs = zip(outputs, (endings, stems))
        losses = [nn.functional.cross_entropy(out.flatten(0, 1), truth.flatten()) for out, truth in pairs]
        return outputs, poptorch.identity_loss(torch.stack(losses).mean(), reduction="none")


def batch(size):
    index = torch.randint(0, len(WORDS), (size, 5))
    return SPELLED[index].int(), index % 3, index // 3


torch.manual_seed(0)
model = CharModel()
opts = poptorch.Options().deviceIterations(2)
opts.setAvailableMemoryProportion({"IPU0": 0.25})
parameters = [
    {"params": chain(model.chars.parameters(), model.convs.parameters()), "lr": 2e-2},
    {"params": chain(model.highways.parameters(), model.lstm.parameters())},
    {"params": [*model.endings.parameters(), *model.stems.parameters()], "betas": (0.8, 0.99)},
]
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(parameters, lr=1e-2))
train(training, (batch(2 * 16) for _ in range(25)))
training.detachFromDevice()
characters, ending, stem = batch(8)
endings, stems = poptorch.inferenceModel(model.eval())(characters)
assert accuracy(endings, ending) > 0.9 and accuracy(stems, stem) > 0.9
