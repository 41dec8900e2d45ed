"""Linear attention and a gated recurrence: trained in parallel form, run step by step with a carried state."""

import torch
from torch import nn
from torch.nn import functional as F

import poptorch


class LinearAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.decay = nn.Parameter(torch.linspace(1.0, 4.0, heads))
        self.out = nn.Linear(dim, dim)

    def qkv(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return F.elu(q) + 1, F.elu(k) + 1, v

    def forward(self, x):
        q, k, v = self.qkv(x)
        t = x.size(1)
        distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        log_decay = F.logsigmoid(self.decay).view(1, -1, 1, 1)
        weights = torch.exp(log_decay * distance.clamp(min=0)) * (distance >= 0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * weights
        y = torch.einsum("bhij,bhjd->bhid", scores / (scores.sum(-1, keepdim=True) + 1e-6), v)
        return self.out(y.transpose(1, 2).flatten(2))

    def step(self, x, state, norm):
        q, k, v = self.qkv(x.unsqueeze(1))
        decay = torch.sigmoid(self.decay).view(1, -1, 1, 1)
        state = state * decay + k.transpose(-1, -2) @ v
        norm = norm * decay.squeeze(-1) + k.squeeze(2)
        y = (q @ state).squeeze(2) / ((q.squeeze(2) * norm).sum(-1, keepdim=True) + 1e-6)
        return self.out(y.flatten(1)), state, norm


class Model(nn.Module):
    def __init__(self, vocab=12, dim=32, heads=4):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocab, dim), nn.RMSNorm(dim)
        self.attention = LinearAttention(dim, heads)
        self.mlp = nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, 2 * dim), nn.Mish(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens, targets=None):
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x))
        logits = self.head(x + self.mlp(x))
        if targets is None:
            return logits
        return poptorch.identity_loss(F.cross_entropy(logits.transpose(1, 2), targets), "none")


class Stepper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, token, state, norm):
        m = self.model
        x = m.embedding(token)
        y, state, norm = m.attention.step(m.norm(x), state, norm)
        x = x + y
        return m.head(x + m.mlp(x)), state, norm


def copy_task(n, length):
    """The second half repeats the first."""
    half = torch.randint(1, 12, (n, length // 2))
    whole = torch.cat([half, half], dim=1)
    return whole[:, :-1], whole[:, 1:]


def main():
    torch.manual_seed(0)
    model = Model()
    opts = poptorch.Options().deviceIterations(2)
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=5e-3))
    losses = [training(*copy_task(32, 8)).item() for _ in range(60)]
    print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")
    training.destroy()

    model.eval()
    parallel = poptorch.inferenceModel(model)
    serial = poptorch.inferenceModel(Stepper(model))
    tokens, _ = copy_task(4, 8)
    expected = parallel(tokens)
    state, norm = torch.zeros(4, 4, 8, 8), torch.zeros(4, 4, 8)
    for position in range(tokens.size(1)):
        logits, state, norm = serial(tokens[:, position], state, norm)
        torch.testing.assert_close(logits, expected[:, position], rtol=1e-3, atol=1e-4)
    assert losses[-1] < 0.85 * losses[0]


if __name__ == "__main__":
    main()
