"""Generate text one token at a time with keys and values cached in buffers on the device."""

from types import SimpleNamespace

import torch
from torch import nn

import poptorch


class CachedAttention(nn.Module):
    def __init__(self, dim, heads, max_len, batch):
        super().__init__()
        self.heads, self.head_dim, self.max_len = heads, dim // heads, max_len
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("keys", torch.zeros(batch, heads, max_len, self.head_dim))
        self.register_buffer("values", torch.zeros(batch, heads, max_len, self.head_dim))

    def split(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (y.view(b, t, self.heads, self.head_dim).transpose(1, 2) for y in (q, k, v))

    def step(self, x, position):
        q, k, v = self.split(x)
        here = (torch.arange(self.max_len) == position).view(1, 1, -1, 1).to(x.dtype)
        self.keys.copy_(self.keys * (1 - here) + k * here)
        self.values.copy_(self.values * (1 - here) + v * here)
        scores = q @ self.keys.transpose(-1, -2) / self.head_dim**0.5
        scores = scores.masked_fill((torch.arange(self.max_len) > position).view(1, 1, 1, -1), -1e4)
        return self.merge(scores.softmax(-1) @ self.values)

    def forward(self, x):
        q, k, v = self.split(x)
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / self.head_dim**0.5).masked_fill(mask, -1e4)
        return self.merge(scores.softmax(-1) @ v)

    def merge(self, x):
        return self.proj(x.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads, max_len, batch):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = CachedAttention(dim, heads, max_len, batch)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, position=None):
        attention = self.attention if position is None else lambda y: self.attention.step(y, position)
        x = x + attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, vocab=24, dim=32, heads=4, layers=2, max_len=16, batch=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, max_len, batch) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, token, position):
        x = self.embedding(token).unsqueeze(1) + self.position(position)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(x).squeeze(1)

    def whole(self, tokens):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.size(1)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    args = SimpleNamespace(tokens=14, prompt=[3, 7])
    torch.manual_seed(0)
    model = Decoder().eval()
    opts = poptorch.Options()
    opts.deviceIterations(1)
    executor = poptorch.inferenceModel(model, opts)

    tokens = torch.tensor([args.prompt, args.prompt[::-1]])
    for position in range(args.tokens):
        logits = executor(tokens[:, position], torch.tensor([position]))
        if position + 1 == tokens.size(1):
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    print(tokens.tolist())

    with torch.no_grad():
        reference = model.whole(tokens[:, : args.tokens])
    torch.testing.assert_close(logits, reference[:, -1], rtol=1e-4, atol=1e-4)
    for position in range(len(args.prompt) - 1, args.tokens):
        assert torch.equal(reference[:, position].argmax(-1), tokens[:, position + 1])


if __name__ == "__main__":
    main()
