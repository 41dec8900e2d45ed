"""An encoder with T5's relative position buckets and RMS norm, trained to find the distance of two marks.

Every layer shares one table of biases, as in T5. Replicated over two IPUs with a reduced output.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class RelativeBias(nn.Module):
    def __init__(self, heads, num_buckets=16, max_distance=32):
        super().__init__()
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.table = nn.Embedding(num_buckets, heads)

    def bucket(self, relative_position):
        num_buckets = self.num_buckets // 2
        buckets = (relative_position > 0).to(torch.long) * num_buckets
        distance = torch.abs(relative_position)
        max_exact = num_buckets // 2
        is_small = distance < max_exact
        large = max_exact + (
            torch.log(distance.float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return buckets + torch.where(is_small, distance, large)

    def forward(self, length):
        context = torch.arange(length, dtype=torch.long)[:, None]
        memory = torch.arange(length, dtype=torch.long)[None, :]
        return self.table(self.bucket(memory - context)).permute(2, 0, 1).unsqueeze(0)


class Block(nn.Module):
    def __init__(self, d_model, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = T5LayerNorm(d_model), T5LayerNorm(d_model)
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.wi_0, self.wi_1 = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_model, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d_model, bias=False)

    def shape(self, x):
        return x.view(x.size(0), -1, self.heads, x.size(-1) // self.heads).transpose(1, 2)

    def forward(self, x, position_bias):
        normed = self.norm1(x)
        q, k, v = self.shape(self.q(normed)), self.shape(self.k(normed)), self.shape(self.v(normed))
        scores = torch.matmul(q, k.transpose(3, 2)) + position_bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        context = torch.matmul(weights, v).transpose(1, 2).contiguous().flatten(2)
        x = x + self.o(context)
        normed = self.norm2(x)
        return x + self.wo(F.gelu(self.wi_0(normed), approximate="tanh") * self.wi_1(normed))


class Encoder(nn.Module):
    def __init__(self, vocab=8, d_model=32, heads=4, layers=2, classes=6):
        super().__init__()
        self.shared = nn.Embedding(vocab, d_model)
        self.bias = RelativeBias(heads)
        self.blocks = nn.ModuleList(Block(d_model, heads, 64) for _ in range(layers))
        self.norm = T5LayerNorm(d_model)
        self.head = nn.Linear(d_model, classes)

    def forward(self, input_ids, labels=None):
        position_bias = self.bias(input_ids.size(1))
        x = self.shared(input_ids)
        for block in self.blocks:
            x = block(x, position_bias)
        logits = self.head(self.norm(x)[:, 0])
        if labels is None:
            return logits, position_bias
        return logits, F.cross_entropy(logits, labels)


def make_data(count, length=12, classes=6):
    ids = torch.randint(2, 8, (count, length))
    labels = torch.randint(0, classes, (count,))
    ids[:, 0] = 0
    ids[torch.arange(count), labels + 2] = 1
    return ids, labels


torch.manual_seed(11)
model = Encoder()

options = poptorch.Options()
options.replicationFactor(2)
options.deviceIterations(2)
options.Training.gradientAccumulation(2)
options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
options.outputMode(poptorch.OutputMode.EveryN, 2)
training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=5e-3))

means = []
for step in range(30):
    ids, labels = make_data(8 * 2 * 2 * 2)
    logits, loss = training(ids, labels)
    # Every second of two device iterations x two accumulations, of two replicas each.
    assert loss.numel() == 4 and logits.shape == (4 * 8, 6), (loss.shape, logits.shape)
    means.append(loss.mean().item())
print(f"loss: {means[0]:.3f} -> {means[-1]:.3f}")
training.destroy()

model.eval()
infer = poptorch.inferenceModel(model, poptorch.Options())
ids, labels = make_data(64)
logits, bias = infer(ids)
expected, expected_bias = Encoder.forward(model, ids)
torch.testing.assert_close(bias, expected_bias.detach())
torch.testing.assert_close(logits, expected.detach(), atol=1e-4, rtol=1e-4)
accuracy = (logits.argmax(1) == labels).float().mean().item()
print(f"accuracy {accuracy:.2f}")
assert means[-1] < 0.6 * means[0]
