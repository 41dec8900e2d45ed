"""A small GPT from scratch on characters, after the well-known minimal implementations.

Decay is applied to matrices only; the learning rate warms up and then follows a cosine.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

import poptorch

TEXT = (
    """to be or not to be that is the question whether tis nobler in the mind to suffer
the slings and arrows of outrageous fortune or to take arms against a sea of troubles """
    * 2
)

# -----------------------------------------------------------------------------
batch_size = 4
block_size = 24
gradient_accumulation_steps = 4
max_iters = 50
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 5
weight_decay = 1e-1
betas = (0.9, 0.95)
# -----------------------------------------------------------------------------


@dataclass
class GPTConfig:
    block_size: int = 24
    vocab_size: int = 64
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 48
    dropout: float = 0.0
    bias: bool = False


class LayerNorm(nn.Module):
    """LayerNorm with an optional bias."""

    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("mask", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MLP(nn.Sequential):
    def __init__(self, config):
        super().__init__(
            nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias),
            nn.Dropout(config.dropout),
        )


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd, config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
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

    def configure_optimizers(self):
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        return poptorch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


chars = sorted(set(TEXT))
stoi = {ch: i for i, ch in enumerate(chars)}
data = torch.tensor([stoi[c] for c in TEXT], dtype=torch.long)


def get_batch():
    starts = torch.randint(len(data) - block_size, (batch_size * gradient_accumulation_steps,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x, y


torch.manual_seed(1337)
config = GPTConfig(vocab_size=len(chars))
model = GPT(config)
print(f"number of parameters: {sum(p.numel() for p in model.parameters()) / 1e3:.1f}k")
optimizer = model.configure_optimizers()
opts = poptorch.Options()
opts.Training.gradientAccumulation(gradient_accumulation_steps)
opts.outputMode(poptorch.OutputMode.Final)
training = poptorch.trainingModel(model, opts, optimizer)

losses = []
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    training.setOptimizer(optimizer)
    losses.append(training(*get_batch()).item())
    if it % 10 == 0:
        print(f"iter {it}: loss {losses[-1]:.4f}")
training.destroy()

# The program is static: the context is padded at its end and the logits are read where the text ends.
model.eval()
inference = poptorch.inferenceModel(model)
context = [stoi[c] for c in "to be or "]
for _ in range(12):
    window = context[-block_size:]
    padded = torch.tensor([window + [0] * (block_size - len(window))])
    logits = inference(padded)
    context.append(logits[0, len(window) - 1].argmax().item())
text = "".join(chars[i] for i in context)
print(repr(text))
assert len(text) == 9 + 12
assert losses[0] > 2.5
assert sum(losses[-5:]) / 5 < 0.6 * losses[0], losses[-5:]
