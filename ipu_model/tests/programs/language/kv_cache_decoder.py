"""Generate text one token at a time with keys and values cached in buffers on the device."""

import torch
from program_kit import TransformerLayer, check_close
from torch import nn

import poptorch

VOCAB, DIM, HEADS, LENGTH, BATCH, TOKENS, PROMPT = 24, 32, 4, 16, 2, 14, [3, 7]


class CachedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.register_buffer("keys", torch.zeros(BATCH, HEADS, LENGTH, DIM // HEADS))
        self.register_buffer("values", torch.zeros(BATCH, HEADS, LENGTH, DIM // HEADS))

    def forward(self, x, position=None):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, DIM // HEADS).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        if position is None:
            mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        else:
            here = (torch.arange(LENGTH) == position).view(1, 1, -1, 1).to(x.dtype)
            self.keys.copy_(self.keys * (1 - here) + k * here)
            self.values.copy_(self.values * (1 - here) + v * here)
            k, v = self.keys, self.values
            mask = (torch.arange(LENGTH) > position).view(1, 1, 1, -1)
        scores = (q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5).masked_fill(mask, -1e4)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        layers = (TransformerLayer(DIM, HEADS, CachedAttention(), nn.SiLU) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

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


torch.manual_seed(0)
model = Decoder().eval()
executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(1))
tokens = torch.tensor([PROMPT, PROMPT[::-1]])
for position in range(TOKENS):
    logits = executor(tokens[:, position], torch.tensor([position]))
    if position + 1 == tokens.size(1):
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)

reference = model.whole(tokens[:, :TOKENS])
check_close(logits, reference[:, -1])
for position in range(len(PROMPT) - 1, TOKENS):
    assert torch.equal(reference[:, position].argmax(-1), tokens[:, position + 1])
