"""Text classification with torch.nn.TransformerEncoder, a padding mask, and attention as pooling."""

import math

import torch
from program_kit import accuracy, check_learned, inferred, train
from torch import nn

import poptorch

VOCAB, LENGTH, DIM, HEADS, CLASSES = 40, 16, 32, 4, 3


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM, padding_idx=0), nn.Linear(DIM, CLASSES)
        angles = torch.arange(LENGTH)[:, None] * torch.exp(torch.arange(0, DIM, 2) * (-math.log(10000.0) / DIM))
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder, self.pool_query = nn.TransformerEncoder(layer, 2), nn.Parameter(torch.zeros(1, 1, DIM))
        self.pool = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    def forward(self, tokens, labels=None):
        padding = tokens == 0
        x = self.encoder(self.embed(tokens) * math.sqrt(DIM) + self.positions, src_key_padding_mask=padding)
        query = self.pool_query.expand(tokens.size(0), -1, -1)
        pooled, weights = self.pool(query, x, x, key_padding_mask=padding, need_weights=True)
        logits = self.head(pooled.squeeze(1))
        return (logits, weights) if labels is None else (logits, self.criterion(logits, labels))


def texts(n):
    labels, tokens = torch.randint(0, CLASSES, (n,)), torch.randint(1, VOCAB - CLASSES, (n, LENGTH))
    tokens[:, 2] = VOCAB - CLASSES + labels  # a keyword that decides
    return tokens.masked_fill(torch.arange(LENGTH) >= torch.randint(6, LENGTH + 1, (n, 1)), 0), labels


torch.manual_seed(0)
opts = poptorch.Options().deviceIterations(4)
opts.Training.gradientAccumulation(2)
loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(*texts(256)), batch_size=8, shuffle=True)
model = Classifier().train()
training = poptorch.trainingModel(model, options=opts, optimizer=poptorch.optim.AdamW(model.parameters(), lr=3e-3))
check_learned(train(training, loader, epochs=6), 1)
training.detachFromDevice()
tokens, labels = texts(64)
assert accuracy(inferred(model, tokens, options=poptorch.Options().deviceIterations(4))[0], labels) > 0.9
