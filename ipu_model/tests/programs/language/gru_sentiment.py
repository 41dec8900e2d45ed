#!/usr/bin/env python3
# Sentiment classification with a GRU over word embeddings, in half precision on two IPUs.
from typing import NamedTuple, Optional

import torch
import torch.nn as nn

import poptorch


class Config(NamedTuple):
    vocab: int = 60
    length: int = 10
    embedding: int = 16
    hidden: int = 32
    layers: int = 2
    batch: int = 4
    accumulation: int = 4
    steps: int = 20


class Sentiment(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab, config.embedding)
        self.gru = nn.GRU(config.embedding, config.hidden, num_layers=config.layers, batch_first=True)
        self.head = nn.Sequential(nn.Linear(config.hidden, 16), nn.Tanh(), nn.Linear(16, 1))
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, text: torch.Tensor, label: Optional[torch.Tensor] = None):
        with poptorch.Block("embedding", ipu_id=0):
            x = self.embed(text)
        with poptorch.Block("recurrent", ipu_id=1):
            _, state = self.gru(x)
            score = self.head(state[-1]).squeeze(-1)
            if label is None:
                return torch.sigmoid(score)
            return score, self.loss(score.float(), label)


def batches(config: Config, count: int, generator: torch.Generator):
    """Positive texts have more words from the upper half of the vocabulary."""
    for _ in range(count):
        size = config.batch * config.accumulation
        label = torch.randint(0, 2, (size,), generator=generator)
        shift = label[:, None] * (config.vocab // 2)
        text = torch.randint(0, config.vocab // 2, (size, config.length), generator=generator) + shift
        yield text.int(), label.float()


def main():
    config = Config()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    model = Sentiment(config).half()

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(config.accumulation)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.Precision.setPartialsType(torch.float16)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU1": 0.4})

    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01, eps=1e-5, loss_scaling=128.0, accum_type=torch.float16)
    poptorch_model = poptorch.trainingModel(model, opts, optimizer)

    history = []
    for step, (text, label) in enumerate(batches(config, config.steps, generator)):
        score, loss = poptorch_model(text, label)
        history.append(float(loss))
        if step % 5 == 0:
            print(f"step {step:3d} loss {history[-1]:.4f}")
    poptorch_model.destroy()
    assert score.dtype == torch.float16 and score.shape == (config.batch,)
    assert history[-1] < 0.3, history

    model.float().eval()
    inference_options = poptorch.Options().deviceIterations(3)
    inference = poptorch.inferenceModel(model, inference_options)
    text, label = next(batches(config._replace(accumulation=3), 1, generator))
    probabilities = inference(text)
    correct = ((probabilities > 0.5) == label.bool()).sum().item()
    print(f"{correct} of {len(label)} right")
    assert correct >= 11


main()
