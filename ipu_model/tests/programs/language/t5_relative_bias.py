"""An encoder with T5's relative position buckets and RMS norm, trained to find the distance of two marks.

Every layer shares one table of biases, as in T5. Replicated over two IPUs with a reduced output.
"""

import math

import torch
from program_kit import check_learned, inferred
from torch import nn
from torch.nn import functional as F

import poptorch

DIM, HEADS, FEED_FORWARD, BUCKETS, FARTHEST, CLASSES, LENGTH = 32, 4, 64, 16, 32, 6, 12


class T5LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


def bucket(relative_position):
    buckets = (relative_position > 0).to(torch.long) * (BUCKETS // 2)
    distance, exact = torch.abs(relative_position), BUCKETS // 4
    large = torch.log(distance.float() / exact) / math.log(FARTHEST / exact) * (BUCKETS // 2 - exact)
    large = exact + large.to(torch.long)
    large = torch.min(large, torch.full_like(large, BUCKETS // 2 - 1))
    return buckets + torch.where(distance < exact, distance, large)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = T5LayerNorm(), T5LayerNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.wi_0, self.wi_1 = (nn.Linear(DIM, FEED_FORWARD, bias=False) for _ in range(2))
        self.wo = nn.Linear(FEED_FORWARD, DIM, bias=False)

    def forward(self, x, position_bias):
        normed = self.norm1(x)
        parts = (layer(normed) for layer in (self.q, self.k, self.v))
        q, k, v = (part.view(part.size(0), -1, HEADS, part.size(-1) // HEADS).transpose(1, 2) for part in parts)
        scores = torch.matmul(q, k.transpose(3, 2)) + position_bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        x = x + self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().flatten(2))
        normed = self.norm2(x)
        return x + self.wo(F.gelu(self.wi_0(normed), approximate="tanh") * self.wi_1(normed))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.bias = nn.Embedding(8, DIM), nn.Embedding(BUCKETS, HEADS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Sequential(T5LayerNorm(), nn.Linear(DIM, CLASSES))

    def forward(self, input_ids, labels=None):
        positions = torch.arange(input_ids.size(1), dtype=torch.long)
        position_bias = self.bias(bucket(positions[None, :] - positions[:, None])).permute(2, 0, 1).unsqueeze(0)
        x = self.shared(input_ids)
        for block in self.blocks:
            x = block(x, position_bias)
        logits = self.head(x[:, 0])
        return (logits, position_bias) if labels is None else (logits, F.cross_entropy(logits, labels))


def make_data(count):
    ids, labels = torch.randint(2, 8, (count, LENGTH)), torch.randint(0, CLASSES, (count,))
    ids[:, 0] = 0
    ids[torch.arange(count), labels + 2] = 1
    return ids, labels


torch.manual_seed(11)
model = Encoder()
options = poptorch.Options().replicationFactor(2).deviceIterations(2).outputMode(poptorch.OutputMode.EveryN, 2)
options.Training.gradientAccumulation(2)
options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=5e-3))
means = []
for _ in range(30):
    logits, loss = training(*make_data(8 * 2 * 2 * 2))
    # Every second of two device iterations x two accumulations, of two replicas each.
    assert loss.numel() == 4 and logits.shape == (4 * 8, 6), (loss.shape, logits.shape)
    means.append(loss.mean().item())
check_learned(means, 0.6)
training.destroy()
inferred(model, make_data(64)[0], options=poptorch.Options())
