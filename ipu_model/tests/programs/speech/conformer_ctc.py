"""A conformer for speech recognition, with CTC loss and greedy decoding, on two IPUs.

Features and transcripts are generated: every character has its own spectrum.
"""

import torch
from program_kit import Items, check_learned, stacked, train
from torch import nn
from torch.nn import functional as F

import popart
import poptorch

BLANK, MELS, FRAMES, DIM, HEADS, KERNEL, VOCAB, LONGEST = 0, 16, 48, 32, 4, 7, 6, 5
SPECTRA = torch.randn(VOCAB, MELS, generator=torch.Generator().manual_seed(99))


def feed_forward():
    layers = nn.Linear(DIM, 4 * DIM), nn.SiLU(), nn.Dropout(0.0), nn.Linear(4 * DIM, DIM)
    return nn.Sequential(nn.LayerNorm(DIM), *layers)


class RelativeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM)
        self.out, self.pos = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.u, self.v = (nn.Parameter(nn.init.xavier_uniform_(torch.zeros(HEADS, DIM // HEADS))) for _ in range(2))

    def rel_shift(self, x):
        b, h, t1, t2 = x.size()
        zero_pad = torch.zeros((b, h, t1, 1), dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, t2 + 1, t1)
        return x_padded[:, :, 1:].view_as(x)[:, :, :, : t2 // 2 + 1]

    def forward(self, x, pos_emb, mask):
        parts = (*self.qkv(self.norm(x)).chunk(3, dim=-1), self.pos(pos_emb))
        q, k, v, p = (part.view(part.size(0), -1, HEADS, DIM // HEADS).transpose(1, 2) for part in parts)
        content = (q + self.u[:, None]) @ k.transpose(-2, -1)
        position = self.rel_shift((q + self.v[:, None]) @ p.transpose(-2, -1))
        scores = ((content + position) / (DIM // HEADS) ** 0.5).masked_fill(mask[:, None, None, :], -1e4)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class ConvModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.batch_norm = nn.LayerNorm(DIM), nn.BatchNorm1d(DIM)
        self.pointwise1, self.pointwise2 = nn.Conv1d(DIM, 2 * DIM, 1), nn.Conv1d(DIM, DIM, 1)
        self.depthwise = nn.Conv1d(DIM, DIM, KERNEL, padding=(KERNEL - 1) // 2, groups=DIM)

    def forward(self, x):
        x = F.glu(self.pointwise1(self.norm(x).transpose(1, 2)), dim=1)
        return self.pointwise2(F.silu(self.batch_norm(self.depthwise(x)))).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff1, self.ff2, self.norm = feed_forward(), feed_forward(), nn.LayerNorm(DIM)
        self.attention, self.conv = RelativeAttention(), ConvModule()

    def forward(self, x, pos_emb, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(x, pos_emb, mask)
        x = x + self.conv(x)
        return self.norm(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        # Two strided convolutions: a quarter of the frames remains.
        convs = [nn.Conv2d(n, 8, 3, stride=2, padding=1) for n in (1, 8)]
        self.subsampling = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU())
        self.project, self.ctc = nn.Linear(8 * (MELS // 4), DIM), nn.Linear(DIM, VOCAB)
        self.layers = nn.ModuleList(ConformerLayer() for _ in range(2))
        positions = torch.arange(FRAMES // 4 - 1, -FRAMES // 4, -1.0)
        angles = positions[:, None] / (10000 ** (torch.arange(0.0, DIM, 2.0) / DIM))
        self.register_buffer("pos_emb", torch.cat([angles.sin(), angles.cos()], dim=-1).unsqueeze(0), persistent=False)

    def forward(self, features, feature_lengths, targets=None, target_lengths=None):
        x = self.project(self.subsampling(features.unsqueeze(1)).transpose(1, 2).contiguous().flatten(2))
        lengths = torch.div(feature_lengths + 3, 4, rounding_mode="trunc")
        mask = torch.arange(x.size(1))[None, :] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, self.pos_emb.to(x.dtype), mask)
        log_probs = F.log_softmax(self.ctc(x).float(), dim=-1)
        if targets is None:
            return log_probs, lengths
        inputs = log_probs.transpose(0, 1), targets, lengths, target_lengths
        loss = F.ctc_loss(*inputs, blank=BLANK, reduction="mean", zero_infinity=True)
        return log_probs.argmax(-1), poptorch.identity_loss(loss, reduction="none")


def speech(index, g):
    length = int(torch.randint(2, LONGEST + 1, (1,), generator=g))
    target = torch.zeros(LONGEST, dtype=torch.int32)
    target[:length] = torch.randint(1, VOCAB, (length,), generator=g)
    features = 0.1 * torch.randn(FRAMES, MELS, generator=g)
    for i in range(length):
        features[8 * i + 1 : 8 * i + 7] += SPECTRA[int(target[i])]
    return features, torch.tensor(8 * length + 4).int(), target, torch.tensor(length).int()


torch.manual_seed(0)
opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
opts.Training.gradientAccumulation(4)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
opts._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
opts._Popart.set("enableOutlining", True)
opts._Popart.set("outlineThreshold", 10.0)
opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
data = Items(128, speech, seed=1000)
loader = poptorch.DataLoader(opts, data, batch_size=4, shuffle=True)
model = Conformer().train()
poptorch.BeginBlock(model.layers[1], "layer1", ipu_id=1)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3, bias_correction=True)
training = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training, loader, epochs=7), 0.6, count=8)
training.destroy()
features, feature_lengths, targets, _ = stacked(data[i] for i in range(16))
inference = poptorch.inferenceModel(model.eval(), poptorch.Options().deviceIterations(4))
log_probs, lengths = inference(features, feature_lengths)
for path, length, target in zip(log_probs.argmax(-1), lengths, targets):
    print([symbol for symbol in path[:length].unique_consecutive().tolist() if symbol != BLANK], "for", target.tolist())
assert log_probs.shape == (16, FRAMES // 4, VOCAB)
