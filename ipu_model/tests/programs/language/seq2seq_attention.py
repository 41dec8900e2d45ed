"""Sequence to sequence with additive attention: learn to reverse a sequence of digits.

The encoder lives on the first IPU, the decoder on the second. For inference, the decoder feeds its own
predictions back, with the number of steps fixed at compile time.
"""

import collections
import json
import os
import tempfile
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

SOS = 0
Stats = collections.namedtuple("Stats", "step loss accuracy")


class Encoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden)

    def forward(self, tokens):
        return self.rnn(self.embedding(tokens.t()))


class AdditiveAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Parameter(torch.randn(hidden) / hidden**0.5)

    def forward(self, query, memory):
        energy = torch.tanh(self.query(query).unsqueeze(0) + self.key(memory))
        weights = torch.softmax(torch.einsum("sbh,h->sb", energy, self.v), dim=0)
        return torch.einsum("sb,sbh->bh", weights, memory), weights


class Decoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.attention = AdditiveAttention(hidden)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def step(self, token, state, memory):
        context, weights = self.attention(state, memory)
        state = self.cell(torch.cat([self.embedding(token), context], dim=-1), state)
        return self.out(torch.cat([state, context], dim=-1)), state, weights


class Seq2Seq(nn.Module):
    def __init__(self, vocab, hidden, length):
        super().__init__()
        self.encoder = poptorch.BeginBlock(Encoder(vocab, hidden), "encoder", ipu_id=0)
        self.decoder = Decoder(vocab, hidden)
        self.length = length

    def forward(self, source, target=None):
        memory, state = self.encoder(source)
        poptorch.Block.useAutoId()
        with poptorch.Block(ipu_id=1):
            state = state.squeeze(0)
            token = torch.full_like(source[:, 0], SOS)
            outputs, attention = [], []
            for i in range(self.length):
                logits, state, weights = self.decoder.step(token, state, memory)
                outputs.append(logits)
                attention.append(weights)
                token = logits.argmax(-1) if target is None else target[:, i]
            outputs = torch.stack(outputs, dim=1)
            if target is None:
                return outputs.argmax(-1), torch.stack(attention, dim=1)
            loss = F.nll_loss(F.log_softmax(outputs, dim=-1).flatten(0, 1), target.flatten())
            return outputs.argmax(-1), loss


def make_batch(size, length, digits):
    source = torch.randint(1, digits + 1, (size, length))
    return source, source.flip(1)


if __name__ == "__main__":
    args = SimpleNamespace(steps=60, hidden=48, length=5, digits=8)

    torch.manual_seed(7)
    model = Seq2Seq(args.digits + 1, args.hidden, args.length)

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=5e-3)
    training = poptorch.trainingModel(model, opts, optimizer)

    log = []
    for step in range(args.steps):
        source, target = make_batch(4 * 16, args.length, args.digits)
        predicted, loss = training(source, target)
        log.append(Stats(step, loss.mean().item(), (predicted == target).float().mean().item()))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log.json")
        with open(path, "w") as file:
            json.dump([entry._asdict() for entry in log], file)
        print("last:", log[-1])
    training.destroy()

    model.eval()
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    inference = poptorch.inferenceModel(model, opts)
    source, target = make_batch(32, args.length, args.digits)
    predicted, attention = inference(source)
    assert attention.shape == (args.length, args.length, 32), attention.shape
    share = (predicted == target).float().mean().item()
    print(f"share of digits right when decoding greedily: {share:.2f}")
    assert log[-1].loss < 0.5 * log[0].loss
    assert share > 0.5
