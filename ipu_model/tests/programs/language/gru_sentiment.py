"""Sentiment classification with a GRU over word embeddings, in half precision on two IPUs."""

from typing import Optional

import torch
from program_kit import train
from torch import nn

import poptorch

VOCAB, LENGTH, BATCH, ACCUMULATION = 60, 10, 4, 4


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(VOCAB, 16), nn.GRU(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, text: torch.Tensor, label: Optional[torch.Tensor] = None):
        with poptorch.Block("embedding", ipu_id=0):
            x = self.embed(text)
        with poptorch.Block("recurrent", ipu_id=1):
            _, state = self.gru(x)
            score = self.head(state[-1]).squeeze(-1)
            if label is None:
                return torch.sigmoid(score)
            assert score.dtype == torch.float16
            return score, self.loss(score.float(), label)


def batch(size):
    """Positive texts have more words from the upper half of the vocabulary."""
    label = torch.randint(0, 2, (size,))
    text = torch.randint(0, VOCAB // 2, (size, LENGTH)) + label[:, None] * (VOCAB // 2)
    return text.int(), label.float()


torch.manual_seed(0)
model = Sentiment().half()
opts = poptorch.Options()
opts.Training.gradientAccumulation(ACCUMULATION)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
opts.Precision.setPartialsType(torch.float16)
opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU1": 0.4})
optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01, eps=1e-5, loss_scaling=128.0, accum_type=torch.float16)
training = poptorch.trainingModel(model, opts, optimizer)
assert train(training, (batch(BATCH * ACCUMULATION) for _ in range(20)))[-1] < 0.3
training.destroy()

inference = poptorch.inferenceModel(model.float().eval(), poptorch.Options().deviceIterations(3))
text, label = batch(BATCH * 3)
assert ((inference(text) > 0.5) == label.bool()).sum() >= 11
