"""Shifted-window attention trained on a pipeline, with the logging, scopes and options of a production script."""

import contextlib
import logging
import math

import torch
import torch.nn as nn
from program_kit import accuracy, train

import popart
import poptorch
from poptorch import _impl as poptorch_impl
from poptorch._logging import logger as poptorch_logger


@contextlib.contextmanager
def scope(name):
    """Name the ops of a part of the model when it is compiled, and do nothing on the CPU."""
    if poptorch_impl.isRunningOnIpu():
        torch.ops.poptorch.push_name_scope(name)
    yield
    if poptorch_impl.isRunningOnIpu():
        torch.ops.poptorch.pop_name_scope()


class WindowAttention(nn.Module):
    def __init__(self, dim, window, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("relative_index", relative[..., 0] * (2 * window - 1) + relative[..., 1])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        windows, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(windows, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.bias_table[self.relative_index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        attention = attention + bias.unsqueeze(0)
        if mask is not None:
            count = mask.shape[0]
            attention = attention.view(windows // count, count, self.heads, tokens, tokens) + mask[None, :, None]
            attention = attention.view(windows, self.heads, tokens, tokens)
        attention = torch.softmax(attention, dim=-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(windows, tokens, dim))


class SwinBlock(nn.Module):
    def __init__(self, dim, size, window, shift):
        super().__init__()
        self.size, self.window, self.shift = size, window, shift
        self.norm1, self.attention = nn.LayerNorm(dim), WindowAttention(dim, window, heads=2)
        self.norm2, self.mlp = (
            nn.LayerNorm(dim),
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)),
        )
        self.register_buffer("mask", self.shifted_mask() if shift else None)

    def partition(self, x):
        batch, dim, n, w = x.shape[0], x.shape[-1], self.size // self.window, self.window
        return x.view(batch, n, w, n, w, dim).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, dim)

    def reverse(self, x, batch):
        n, w = self.size // self.window, self.window
        return x.view(batch, n, n, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(batch, self.size, self.size, -1)

    def shifted_mask(self):
        region = torch.zeros(1, self.size, self.size, 1)
        slices = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for i, (rows, columns) in enumerate((a, b) for a in slices for b in slices):
            region[:, rows, columns] = i
        ids = self.partition(region).squeeze(-1)
        return (ids[:, None] != ids[:, :, None]).float() * -100.0

    def forward(self, x):
        batch = x.shape[0]
        h = self.norm1(x)
        if self.shift:
            h = torch.roll(h, shifts=(-self.shift, -self.shift), dims=(1, 2))
        h = self.reverse(self.attention(self.partition(h), self.mask), batch)
        if self.shift:
            h = torch.roll(h, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + h
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self, classes=4, dim=16, size=8):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 2, 2)
        self.stage1 = nn.Sequential(SwinBlock(dim, size, 4, 0), SwinBlock(dim, size, 4, 2))
        self.merge = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.stage2 = nn.Sequential(SwinBlock(2 * dim, size // 2, 4, 0))
        self.norm, self.head = nn.LayerNorm(2 * dim), nn.Linear(2 * dim, classes)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, images, labels=None):
        with scope("embed"):
            x = self.embed(images).permute(0, 2, 3, 1)
        with scope("stage1"):
            x = self.stage1(x)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        x = self.stage2(self.merge(x))
        logits = self.head(self.norm(x).mean(dim=(1, 2)))
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)


def get_options():
    opts = poptorch.Options()
    if poptorch.ipuHardwareIsAvailable():
        opts.connectionType(poptorch.ConnectionType.OnDemand)
    else:
        opts.useIpuModel(True)
    opts.Training.gradientAccumulation(4)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    opts._Popart.set("decomposeGradSum", True)
    opts._Popart.set("batchSerializationSettings.factor", 1)
    opts._Popart.set(
        "accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized)
    )
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
    opts._Popart.set("enableGradientAccumulation", True)
    opts._Popart.setPatterns({"InPlace": True})
    return opts


def main():
    torch.manual_seed(0)
    poptorch_logger.setLevel(logging.WARNING)
    poptorch.logger.info("PopTorch %s, PopART %s", poptorch.__version__, popart.versionString())

    model = Swin()
    model.stage2 = poptorch.BeginBlock(model.stage2, "stage2", ipu_id=1)
    opts = get_options()
    labels = torch.arange(128) % 4
    images = 0.6 * torch.randn(128, 3, 16, 16)
    images[:, 0] += torch.sin(torch.arange(16.0) * (0.5 + labels[:, None]))[:, None]
    loader = poptorch.DataLoader(
        opts,
        torch.utils.data.TensorDataset(images, labels),
        batch_size=4,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy.SharedMemory},
    )
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for epoch in range(6):
        losses += train(training_model, loader)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * (epoch + 1) / 6))
        training_model.setOptimizer(optimizer)
    loader.terminate()
    training_model.detachFromDevice()
    assert loader._combined_batch_size == 16
    assert losses[-1] < 0.8 * losses[0]
    assert accuracy(model.eval()(images), labels) > 0.7


if __name__ == "__main__":
    main()
