"""A conformer for speech recognition, with CTC loss and greedy decoding, on two IPUs.

Features and transcripts are generated: every character has its own spectrum.
"""

import logging
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import List

import torch
import torch.nn as nn
import torch.nn.functional as F
from program_kit import Items, stacked, train

import popart
import poptorch

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)

BLANK = 0


@dataclass
class ModelConfig:
    mels: int = 16
    frames: int = 48
    encoder_dim: int = 32
    layers: int = 2
    heads: int = 4
    kernel: int = 7
    vocab: int = 6
    max_target: int = 5
    dropout: float = 0.0
    pipeline: List[int] = field(default_factory=lambda: [1, 1])


class Subsampling(nn.Module):
    """Two strided convolutions: a quarter of the frames remains."""

    def __init__(self, config):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.out = nn.Linear(8 * (config.mels // 4), config.encoder_dim)

    def forward(self, x):
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.size()
        return self.out(x.transpose(1, 2).contiguous().view(b, t, c * f))


class FeedForward(nn.Sequential):
    def __init__(self, dim, dropout):
        super().__init__(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim)
        )


class RelativeAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.pos = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, self.head_dim))
        self.v = nn.Parameter(torch.zeros(heads, self.head_dim))
        nn.init.xavier_uniform_(self.u)
        nn.init.xavier_uniform_(self.v)

    def rel_shift(self, x):
        b, h, t1, t2 = x.size()
        zero_pad = torch.zeros((b, h, t1, 1), dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, t2 + 1, t1)
        return x_padded[:, :, 1:].view_as(x)[:, :, :, : t2 // 2 + 1]

    def forward(self, x, pos_emb, mask):
        x = self.norm(x)
        b, t, d = x.shape
        split = lambda y: y.view(y.size(0), -1, self.heads, self.head_dim)  # noqa: E731
        q, k, v = split(self.query(x)), split(self.key(x)).transpose(1, 2), split(self.value(x)).transpose(1, 2)
        p = split(self.pos(pos_emb)).transpose(1, 2)
        content = (q + self.u).transpose(1, 2) @ k.transpose(-2, -1)
        position = self.rel_shift((q + self.v).transpose(1, 2) @ p.transpose(-2, -1))
        scores = (content + position) / self.head_dim**0.5
        scores = scores.masked_fill(mask[:, None, None, :], -1e4)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
        return self.out(context)


class ConvModule(nn.Module):
    def __init__(self, dim, kernel):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=(kernel - 1) // 2, groups=dim)
        self.batch_norm = nn.BatchNorm1d(dim)
        self.pointwise2 = nn.Conv1d(dim, dim, 1)

    def forward(self, x):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pointwise1(x), dim=1)
        x = F.silu(self.batch_norm(self.depthwise(x)))
        return self.pointwise2(x).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = config.encoder_dim
        self.ff1, self.ff2 = FeedForward(dim, config.dropout), FeedForward(dim, config.dropout)
        self.attention = RelativeAttention(dim, config.heads)
        self.conv = ConvModule(dim, config.kernel)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, pos_emb, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(x, pos_emb, mask)
        x = x + self.conv(x)
        return self.norm(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.subsampling = Subsampling(config)
        self.layers = nn.ModuleList(ConformerLayer(config) for _ in range(config.layers))
        self.ctc = nn.Linear(config.encoder_dim, config.vocab)
        length = config.frames // 4
        positions = torch.arange(length - 1, -length, -1.0)
        inverse = 1.0 / (10000 ** (torch.arange(0.0, config.encoder_dim, 2.0) / config.encoder_dim))
        angles = positions[:, None] * inverse[None, :]
        self.register_buffer("pos_emb", torch.cat([angles.sin(), angles.cos()], dim=-1).unsqueeze(0), persistent=False)

    def place(self):
        layer = 0
        for ipu, count in enumerate(self.config.pipeline):
            for _ in range(count):
                if ipu > 0 or layer > 0:
                    poptorch.BeginBlock(self.layers[layer], f"layer{layer}", ipu_id=ipu)
                layer += 1
        return self

    def forward(self, features, feature_lengths, targets=None, target_lengths=None):
        x = self.subsampling(features)
        lengths = torch.div(feature_lengths + 3, 4, rounding_mode="trunc")
        mask = torch.arange(x.size(1))[None, :] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, self.pos_emb.to(x.dtype), mask)
        log_probs = F.log_softmax(self.ctc(x).float(), dim=-1)
        if targets is None:
            return log_probs, lengths
        loss = F.ctc_loss(
            log_probs.transpose(0, 1),
            targets,
            lengths,
            target_lengths,
            blank=BLANK,
            reduction="mean",
            zero_infinity=True,
        )
        return log_probs.argmax(-1), poptorch.identity_loss(loss, reduction="none")


SPECTRA = torch.randn(ModelConfig.vocab, ModelConfig.mels, generator=torch.Generator().manual_seed(99))


def speech(index, g):
    c = ModelConfig
    length = int(torch.randint(2, c.max_target + 1, (1,), generator=g))
    target = torch.zeros(c.max_target, dtype=torch.int32)
    target[:length] = torch.randint(1, c.vocab, (length,), generator=g)
    features = 0.1 * torch.randn(c.frames, c.mels, generator=g)
    for i in range(length):
        features[8 * i + 1 : 8 * i + 7] += SPECTRA[int(target[i])]
    used = min(c.frames, 8 * length + 4)
    return features, torch.tensor(used, dtype=torch.int32), target, torch.tensor(length, dtype=torch.int32)


def greedy_decode(path):
    text, previous = [], BLANK
    for symbol in path.tolist():
        if symbol not in (previous, BLANK):
            text.append(symbol)
        previous = symbol
    return text


def main():
    args = SimpleNamespace(epochs=7, batch_size=4, gradient_accumulation=4)
    config = ModelConfig()
    logging.info("config: %s", asdict(config))
    torch.manual_seed(0)

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.outputMode(poptorch.OutputMode.All)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    opts._Popart.set("enableOutlining", True)
    opts._Popart.set("outlineThreshold", 10.0)
    opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))

    train_loader = poptorch.DataLoader(opts, Items(128, speech, seed=1000), batch_size=args.batch_size, shuffle=True)
    model = Conformer(config).place().train()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3, bias_correction=True)
    training = poptorch.trainingModel(model, opts, optimizer)
    losses = train(training, train_loader, args.epochs)
    training.destroy()

    model.eval()
    inference = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    dataset = Items(16, speech, seed=1000)
    features, feature_lengths, targets, target_lengths = stacked(dataset[i] for i in range(16))
    log_probs, lengths = inference(features, feature_lengths)
    right = 0
    for path, length, target, size in zip(log_probs.argmax(-1), lengths, targets, target_lengths):
        right += greedy_decode(path[:length]) == target[:size].tolist()
    logging.info("%d of %d transcripts right", right, len(targets))
    assert log_probs.shape == (16, config.frames // 4, config.vocab)
    assert sum(losses[-8:]) < 0.6 * sum(losses[:8]), losses


if __name__ == "__main__":
    main()
