"""A small GPT from scratch on characters, after the well-known minimal implementations.

Decay is applied to matrices only; the learning rate warms up and then follows a cosine.
"""

import math

import torch
from program_kit import check_learned
from torch import nn
from torch.nn import functional as F

import poptorch

TEXT = """to be or not to be that is the question whether tis nobler in the mind to suffer
the slings and arrows of outrageous fortune or to take arms against a sea of troubles """
CHARS = sorted(set(TEXT))
BATCH, BLOCK, ACCUMULATION, STEPS, WARMUP, RATE, LOWEST_RATE = 4, 24, 4, 50, 5, 1e-2, 1e-3
LAYERS, HEADS, SIZE = 3, 4, 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(SIZE, bias=False), nn.LayerNorm(SIZE, bias=False)
        self.c_attn, self.c_proj = (nn.Linear(SIZE, n * SIZE, bias=False) for n in (3, 1))
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, BLOCK, BLOCK)))
        up, down = nn.Linear(SIZE, 4 * SIZE, bias=False), nn.Linear(4 * SIZE, SIZE, bias=False)
        self.mlp = nn.Sequential(up, nn.GELU(approximate="tanh"), down, nn.Dropout(0.0))

    def attn(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        wte, wpe = nn.Embedding(len(CHARS), SIZE), nn.Embedding(BLOCK, SIZE)
        blocks, norm = nn.ModuleList([Block() for _ in range(LAYERS)]), nn.LayerNorm(SIZE, bias=False)
        self.transformer = nn.ModuleDict({"wte": wte, "wpe": wpe, "h": blocks, "ln_f": norm})
        self.lm_head = nn.Linear(SIZE, len(CHARS), bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def get_lr(step):
    cosine = math.cos(math.pi * max(0, step - WARMUP) / (STEPS - WARMUP))
    return min(RATE * (step + 1) / WARMUP, LOWEST_RATE + 0.5 * (1.0 + cosine) * (RATE - LOWEST_RATE))


torch.manual_seed(1337)
data = torch.tensor([CHARS.index(c) for c in 2 * TEXT], dtype=torch.long)
model = GPT()
groups = [
    {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = poptorch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
opts = poptorch.Options().outputMode(poptorch.OutputMode.Final)
opts.Training.gradientAccumulation(ACCUMULATION)
training = poptorch.trainingModel(model, opts, optimizer)
losses = []
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    training.setOptimizer(optimizer)
    starts = torch.randint(len(data) - BLOCK, (BATCH * ACCUMULATION, 1)) + torch.arange(BLOCK)
    losses.append(training(data[starts], data[starts + 1]).item())
training.destroy()
assert losses[0] > 2.5
check_learned(losses, 0.6, count=5)

# The program is static: the context is padded at its end and the logits are read where the text ends.
inference = poptorch.inferenceModel(model.eval())
context = [CHARS.index(c) for c in "to be or "]
for _ in range(12):
    logits = inference(torch.tensor([context + [0] * (BLOCK - len(context))]))
    context.append(logits[0, len(context) - 1].argmax().item())
print(repr("".join(CHARS[i] for i in context)))
