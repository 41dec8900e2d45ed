"""Sequence to sequence with additive attention: learn to reverse a sequence of digits.

The encoder lives on the first IPU, the decoder on the second. For inference, the decoder feeds its own
predictions back, with the number of steps fixed at compile time.
"""

import torch
from program_kit import check_learned, train
from torch import nn

import poptorch

SOS, HIDDEN, LENGTH, DIGITS = 0, 48, 5, 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(DIGITS + 1, HIDDEN), nn.GRU(HIDDEN, HIDDEN)

    def forward(self, tokens):
        return self.rnn(self.embedding(tokens.t()))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = poptorch.BeginBlock(Encoder(), "encoder", ipu_id=0)
        self.embedding, self.cell = nn.Embedding(DIGITS + 1, HIDDEN), nn.GRUCell(2 * HIDDEN, HIDDEN)
        self.query, self.key = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.v, self.out = nn.Parameter(torch.randn(HIDDEN) / HIDDEN**0.5), nn.Linear(2 * HIDDEN, DIGITS + 1)

    def decode(self, token, state, memory):
        energy = torch.tanh(self.query(state).unsqueeze(0) + self.key(memory))
        weights = torch.softmax(torch.einsum("sbh,h->sb", energy, self.v), dim=0)
        context = torch.einsum("sb,sbh->bh", weights, memory)
        state = self.cell(torch.cat([self.embedding(token), context], dim=-1), state)
        return self.out(torch.cat([state, context], dim=-1)), state, weights

    def forward(self, source, target=None):
        memory, state = self.encoder(source)
        poptorch.Block.useAutoId()
        with poptorch.Block(ipu_id=1):
            state, token = state.squeeze(0), torch.full_like(source[:, 0], SOS)
            outputs, attention = [], []
            for i in range(LENGTH):
                logits, state, weights = self.decode(token, state, memory)
                outputs.append(logits)
                attention.append(weights)
                token = logits.argmax(-1) if target is None else target[:, i]
            outputs = torch.stack(outputs, dim=1)
            if target is None:
                return outputs.argmax(-1), torch.stack(attention, dim=1)
            log_probabilities = nn.functional.log_softmax(outputs, dim=-1)
            return outputs.argmax(-1), nn.functional.nll_loss(log_probabilities.flatten(0, 1), target.flatten())


def make_batch(size):
    source = torch.randint(1, DIGITS + 1, (size, LENGTH))
    return source, source.flip(1)


torch.manual_seed(7)
model = Seq2Seq()
opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
opts.Training.gradientAccumulation(4)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
check_learned(train(training, (make_batch(4 * 16) for _ in range(60))), 0.5)
training.destroy()

opts = poptorch.Options()
opts.setExecutionStrategy(poptorch.ShardedExecution())
source, target = make_batch(32)
predicted, attention = poptorch.inferenceModel(model.eval(), opts)(source)
assert attention.shape == (LENGTH, LENGTH, 32), attention.shape
assert (predicted == target).float().mean() > 0.5
