"""Linear attention with decay: trained in parallel form, run step by step with a state that is carried along."""

import torch
from program_kit import check_close, check_learned
from torch import nn
from torch.nn import functional as F

import poptorch

DIM, HEADS, VOCAB = 32, 4, 12


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.decay = nn.Parameter(torch.linspace(1.0, 4.0, HEADS))

    def qkv(self, x):
        q, k, v = self.to_qkv(x).view(*x.shape[:2], 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        return F.elu(q) + 1, F.elu(k) + 1, v

    def forward(self, x):
        q, k, v = self.qkv(x)
        distance = torch.arange(x.size(1))[:, None] - torch.arange(x.size(1))[None, :]
        log_decay = F.logsigmoid(self.decay).view(1, -1, 1, 1)
        scores = q @ k.mT * torch.exp(log_decay * distance.clamp(min=0)) * (distance >= 0)
        y = scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v
        return self.out(y.transpose(1, 2).flatten(2))

    def step(self, x, state, norm):
        q, k, v = self.qkv(x.unsqueeze(1))
        decay = torch.sigmoid(self.decay).view(1, -1, 1, 1)
        state, norm = state * decay + k.mT @ v, norm * decay.squeeze(-1) + k.squeeze(2)
        y = (q @ state).squeeze(2) / ((q.squeeze(2) * norm).sum(-1, keepdim=True) + 1e-6)
        return self.out(y.flatten(1)), state, norm


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.attention = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM), LinearAttention()
        self.head = nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Mish(), nn.Linear(2 * DIM, VOCAB))

    def forward(self, tokens, targets=None):
        x = self.embedding(tokens)
        logits = self.head(x + self.attention(self.norm(x)))
        if targets is None:
            return logits
        return poptorch.identity_loss(F.cross_entropy(logits.transpose(1, 2), targets), "none")


class Stepper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, token, state, norm):
        x = self.model.embedding(token)
        y, state, norm = self.model.attention.step(self.model.norm(x), state, norm)
        return self.model.head(x + y), state, norm


def copy_task(n):
    whole = torch.randint(1, VOCAB, (n, 4)).repeat(1, 2)
    return whole[:, :-1], whole[:, 1:]


torch.manual_seed(0)
model = Model()
opts = poptorch.Options().deviceIterations(2)
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=5e-3))
check_learned([training(*copy_task(32)).item() for _ in range(60)], 0.85)
training.destroy()
tokens, _ = copy_task(4)
expected = poptorch.inferenceModel(model.eval())(tokens)
serial, state, norm = poptorch.inferenceModel(Stepper(model)), torch.zeros(4, HEADS, 8, 8), torch.zeros(4, HEADS, 8)
for position in range(tokens.size(1)):
    logits, state, norm = serial(tokens[:, position], state, norm)
    check_close(logits, expected[:, position], 1e-3)
