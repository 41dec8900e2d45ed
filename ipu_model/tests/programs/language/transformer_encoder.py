"""Text classification with torch.nn.TransformerEncoder and a padding mask."""

import math
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import poptorch

VOCAB, MAX_LEN, D_MODEL, HEADS, LAYERS, CLASSES = 40, 16, 32, 4, 2, 3


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.0, max_len=64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D_MODEL, padding_idx=0)
        self.position = PositionalEncoding(D_MODEL)
        layer = nn.TransformerEncoderLayer(
            D_MODEL, HEADS, dim_feedforward=64, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.pool_query = nn.Parameter(torch.zeros(1, 1, D_MODEL))
        self.pool = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.head = nn.Linear(D_MODEL, CLASSES)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    def forward(self, tokens, labels=None):
        padding = tokens == 0
        x = self.position(self.embed(tokens) * math.sqrt(D_MODEL))
        x = self.encoder(x, src_key_padding_mask=padding)
        query = self.pool_query.expand(tokens.size(0), -1, -1)
        pooled, weights = self.pool(query, x, x, key_padding_mask=padding, need_weights=True)
        logits = self.head(pooled.squeeze(1))
        if labels is None:
            return logits, weights
        return logits, self.criterion(logits, labels)


def synthetic(n, seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, MAX_LEN + 1, (n,), generator=g)
    labels = torch.randint(0, CLASSES, (n,), generator=g)
    tokens = torch.randint(1, VOCAB - CLASSES, (n, MAX_LEN), generator=g)
    tokens[:, 2] = VOCAB - CLASSES + labels  # a keyword that decides
    tokens[torch.arange(MAX_LEN) >= lengths[:, None]] = 0
    return TensorDataset(tokens, labels)


def evaluate(model, loader):
    correct = total = 0
    for tokens, labels in loader:
        logits, _ = model(tokens)
        correct += (logits.argmax(1) == labels).sum().item()
        total += labels.numel()
    return correct / total


torch.manual_seed(0)
opts = poptorch.Options()
opts.deviceIterations(4)
opts.Training.gradientAccumulation(2)

train_loader = poptorch.DataLoader(opts, synthetic(256, 0), batch_size=8, shuffle=True)
valid_opts = poptorch.Options()
valid_opts.deviceIterations(4)
valid_loader = poptorch.DataLoader(valid_opts, synthetic(64, 1), batch_size=8)

model = Classifier()
model.train()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
train_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)

first = last = None
for epoch in range(6):
    for tokens, labels in train_loader:
        _, loss = train_model(tokens, labels)
        first = first if first is not None else loss.item()
        last = loss.item()
        warmup.step()
        train_model.setOptimizer(optimizer)
    print(f"epoch {epoch}: loss {last:.3f}, lr {warmup.get_last_lr()[0]:.4f}")
train_model.detachFromDevice()

model.eval()
inference = poptorch.inferenceModel(model, valid_opts)
accuracy = evaluate(inference, valid_loader)
print(f"validation accuracy {accuracy:.3f}")

tokens = next(iter(valid_loader))[0]
with torch.no_grad():
    reference_logits, reference_weights = Classifier.forward(model, tokens)
logits, weights = inference(tokens)
close = torch.allclose(logits, reference_logits, atol=1e-4) and torch.allclose(weights, reference_weights, atol=1e-4)
sys.exit(0 if accuracy > 0.9 and last < first and close else 1)
