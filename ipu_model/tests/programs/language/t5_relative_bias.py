"""An encoder with T5's relative position buckets and RMS norm, trained to find the distance of two marks.

Every layer shares one table of biases, as in T5. Replicated over two IPUs with a reduced output.
"""

import math

import torch
from program_kit import check_close, check_learned
from torch import nn
from torch.nn import functional as F

import poptorch

DIM, HEADS, FEED_FORWARD, BUCKETS, FARTHEST, CLASSES, LENGTH = 32, 4, 64, 16, 32, 6, 12


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class T5LayerNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(DIM)), eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
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
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.wi_0, self.wi_1, self.wo = linear(DIM, FEED_FORWARD), linear(DIM, FEED_FORWARD), linear(FEED_FORWARD, DIM)

    def shape(self, x):
        return x.view(x.size(0), -1, HEADS, x.size(-1) // HEADS).transpose(1, 2)

    def forward(self, x, position_bias):
        normed = self.norm1(x)
        q, k, v = self.shape(self.q(normed)), self.shape(self.k(normed)), self.shape(self.v(normed))
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
        self.norm, self.head = T5LayerNorm(), nn.Linear(DIM, CLASSES)

    def forward(self, input_ids, labels=None):
        positions = torch.arange(input_ids.size(1), dtype=torch.long)
        position_bias = self.bias(bucket(positions[None, :] - positions[:, None])).permute(2, 0, 1).unsqueeze(0)
        x = self.shared(input_ids)
        for block in self.blocks:
            x = block(x, position_bias)
        logits = self.head(self.norm(x)[:, 0])
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
ids, _ = make_data(64)
check_close(poptorch.inferenceModel(model.eval(), poptorch.Options())(ids), Encoder.forward(model, ids))
