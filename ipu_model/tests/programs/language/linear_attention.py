"""Linear attention with decay: trained in parallel form, run step by step with a state that is carried along."""

import torch
from program_kit import Over, check_close, check_learned
from torch import nn
from torch.nn import functional as F

import poptorch

DIM, HEADS, VOCAB = 32, 4, 12


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM)
        self.to_qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.decay = nn.Parameter(torch.linspace(1.0, 4.0, HEADS).view(1, -1, 1, 1))
        self.head = nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Mish(), nn.Linear(2 * DIM, VOCAB))

    def qkv(self, x):
        q, k, v = self.to_qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        return F.elu(q) + 1, F.elu(k) + 1, v

    def forward(self, tokens, targets=None):
        x = self.embedding(tokens)
        q, k, v = self.qkv(x)
        distance = torch.arange(x.size(1))[:, None] - torch.arange(x.size(1))[None, :]
        scores = q @ k.mT * torch.exp(F.logsigmoid(self.decay) * distance.clamp(min=0)) * (distance >= 0)
        y = scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v
        logits = self.head(x + self.out(y.transpose(1, 2).flatten(2)))
        if targets is None:
            return logits
        return poptorch.identity_loss(F.cross_entropy(logits.transpose(1, 2), targets), "none")


class Stepper(Over):
    def forward(self, token, state, norm):
        x = self.network.embedding(token.unsqueeze(1))
        q, k, v = self.network.qkv(x)
        decay = torch.sigmoid(self.network.decay)
        state, norm = state * decay + k.mT @ v, norm * decay + k
        y = q @ state / ((q * norm).sum(-1, keepdim=True) + 1e-6)
        return self.network.head(x + self.network.out(y.transpose(1, 2).flatten(2)))[:, 0], state, norm


def copy_task(n):
    whole = torch.randint(1, VOCAB, (n, 4)).repeat(1, 2)
    return whole[:, :-1], whole[:, 1:]


torch.manual_seed(0)
model = LinearAttention()
opts = poptorch.Options().deviceIterations(2)
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=5e-3))
check_learned([training(*copy_task(32)).item() for _ in range(60)], 0.85)
training.destroy()
tokens, _ = copy_task(4)
expected = poptorch.inferenceModel(model.eval())(tokens)
serial, state, norm = poptorch.inferenceModel(Stepper(model)), torch.zeros(4, HEADS, 8, 8), torch.zeros(4, HEADS, 1, 8)
for position in range(tokens.size(1)):
    logits, state, norm = serial(tokens[:, position], state, norm)
    check_close(logits, expected[:, position], 1e-3)
