"""Words from characters: convolutions of several widths, max over time, highway layers, then an LSTM."""

from itertools import chain

import torch
from torch import nn

import poptorch

WORDS = ["run", "runs", "running", "jump", "jumps", "jumping", "walk", "walks", "walking", "look", "looks", "looking"]
LETTERS = "_" + "".join(sorted(set("".join(WORDS))))
MAX_WORD = max(map(len, WORDS))


def encode(word):
    return [LETTERS.index(c) for c in word.ljust(MAX_WORD, "_")]


class Highway(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj, self.gate = nn.Linear(size, size), nn.Linear(size, size)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return torch.addcmul(x * (1 - gate), torch.relu(self.proj(x)), gate)


class CharModel(nn.Module):
    KERNELS = ((2, 8), (3, 8), (4, 16))

    def __init__(self):
        super().__init__()
        self.chars = nn.Embedding(len(LETTERS), 8, padding_idx=0)
        self.convs = nn.ModuleDict({f"width{k}": nn.Conv1d(8, n, k) for k, n in self.KERNELS})
        size = sum(n for _, n in self.KERNELS)
        self.highways = nn.Sequential(*(Highway(size) for _ in range(2)))
        self.lstm = nn.LSTM(size, 32)
        self.endings = nn.Linear(32, 3)
        self.stems = nn.Linear(32, 4)

    def words(self, characters):
        batch, length, _ = characters.shape
        x = self.chars(characters.reshape(batch * length, MAX_WORD)).transpose(1, 2)
        pooled = [conv(x).amax(dim=-1) for conv in self.convs.values()]
        return self.highways(torch.cat(pooled, dim=1)).reshape(batch, length, -1)

    def forward(self, characters, endings=None, stems=None):
        y, _ = self.lstm(self.words(characters).transpose(0, 1))
        y = y.transpose(0, 1)
        outputs = self.endings(y), self.stems(y)
        if endings is None:
            return outputs
        losses = [
            nn.functional.cross_entropy(out.flatten(0, 1), truth.flatten())
            for out, truth in zip(outputs, (endings, stems))
        ]
        return outputs, poptorch.identity_loss(torch.stack(losses).mean(), reduction="none")


def batch(size, length=5):
    index = torch.randint(0, len(WORDS), (size, length))
    characters = torch.tensor([[encode(WORDS[i]) for i in row] for row in index.tolist()], dtype=torch.int16)
    return characters.int(), index % 3, index // 3


def main():
    torch.manual_seed(0)
    model = CharModel()
    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.setAvailableMemoryProportion({"IPU0": 0.25})
    parameters = [
        {"params": chain(model.chars.parameters(), model.convs.parameters()), "lr": 2e-2},
        {"params": chain(model.highways.parameters(), model.lstm.parameters())},
        {"params": [*model.endings.parameters(), *model.stems.parameters()], "betas": (0.8, 0.99)},
    ]
    optimizer = poptorch.optim.Adam(parameters, lr=1e-2)
    training = poptorch.trainingModel(model, opts, optimizer)
    for step in range(25):
        (endings, stems), loss = training(*batch(2 * 16))
        if step == 15:
            optimizer.param_groups[0]["lr"] = 5e-3
            training.setOptimizer(optimizer)
        if step % 8 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    training.detachFromDevice()
    model.eval()
    inference = poptorch.inferenceModel(model)
    characters, truth, stem = batch(8)
    endings, stems = inference(characters)
    accuracy = ((endings.argmax(-1) == truth) & (stems.argmax(-1) == stem)).float().mean().item()
    print(f"accuracy {accuracy:.2f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    main()
