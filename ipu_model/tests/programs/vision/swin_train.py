"""Shifted-window attention trained on a pipeline, with the logging, scopes and options of a production script."""

import contextlib
import logging
import math

import torch
from program_kit import TransformerLayer, accuracy, check_learned, save_memory, train
from torch import nn

import popart
import poptorch
from poptorch import _impl as poptorch_impl
from poptorch._logging import logger as poptorch_logger

WINDOW, HEADS, DIM, SIDE, EPOCHS = 4, 2, 16, 8, 6


@contextlib.contextmanager
def scope(name):
    """Name the ops of a part of the model when it is compiled, and do nothing on the CPU."""
    if poptorch_impl.isRunningOnIpu():
        torch.ops.poptorch.push_name_scope(name)
    yield
    if poptorch_impl.isRunningOnIpu():
        torch.ops.poptorch.pop_name_scope()


class WindowAttention(nn.Module):
    """Attention within windows of a picture (batch, side, side, dim), which are shifted by some pixels."""

    def __init__(self, dim, size, shift):
        super().__init__()
        self.size, self.shift = size, shift
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * WINDOW - 1) ** 2, HEADS))
        coords = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + WINDOW - 1
        self.register_buffer("relative_index", relative[..., 0] * (2 * WINDOW - 1) + relative[..., 1])
        self.register_buffer("mask", self.shifted_mask() if shift else None)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def partition(self, x):
        batch, dim, n = x.shape[0], x.shape[-1], self.size // WINDOW
        return x.view(batch, n, WINDOW, n, WINDOW, dim).permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW**2, dim)

    def reverse(self, x, batch):
        n = self.size // WINDOW
        x = x.view(batch, n, n, WINDOW, WINDOW, -1).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(batch, self.size, self.size, -1)

    def shifted_mask(self):
        region = torch.zeros(1, self.size, self.size, 1)
        slices = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
        for i, (rows, columns) in enumerate((a, b) for a in slices for b in slices):
            region[:, rows, columns] = i
        ids = self.partition(region).squeeze(-1)
        return (ids[:, None] != ids[:, :, None]).float() * -100.0

    def forward(self, image):
        if self.shift:
            image = torch.roll(image, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = self.partition(image)
        windows, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(windows, tokens, 3, HEADS, dim // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias_table[self.relative_index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        attention = (q * (dim // HEADS) ** -0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
        if self.mask is not None:
            count = self.mask.shape[0]
            attention = attention.view(windows // count, count, HEADS, tokens, tokens) + self.mask[None, :, None]
            attention = attention.view(windows, HEADS, tokens, tokens)
        x = (torch.softmax(attention, dim=-1) @ v).transpose(1, 2).reshape(windows, tokens, dim)
        x = self.reverse(self.proj(x), image.shape[0])
        return torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2)) if self.shift else x


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.merge = nn.Conv2d(3, DIM, 2, 2), nn.Linear(4 * DIM, 2 * DIM, bias=False)
        stages = ((DIM, SIDE, 0), (DIM, SIDE, 2), (2 * DIM, SIDE // 2, 0))
        layers = [TransformerLayer(stage[0], HEADS, attention=WindowAttention(*stage)) for stage in stages]
        self.stage1, self.stage2 = nn.Sequential(*layers[:2]), poptorch.BeginBlock(layers[2], "stage2", ipu_id=1)
        self.norm, self.head = nn.LayerNorm(2 * DIM), nn.Linear(2 * DIM, 4)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, images, labels=None):
        with scope("embed"):
            x = self.embed(images).permute(0, 2, 3, 1)
        with scope("stage1"):
            x = self.stage1(x)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        logits = self.head(self.norm(self.stage2(self.merge(x))).mean(dim=(1, 2)))
        return logits if labels is None else (logits, self.loss(logits, labels))


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
    save_memory(opts)
    opts._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
    opts._Popart.set("enableGradientAccumulation", True)
    opts._Popart.setPatterns({"InPlace": True})
    return opts


def main():
    torch.manual_seed(0)
    poptorch_logger.setLevel(logging.WARNING)
    poptorch.logger.info("PopTorch %s, PopART %s", poptorch.__version__, popart.versionString())
    labels = torch.arange(128) % 4
    images = 0.6 * torch.randn(128, 3, 16, 16)
    images[:, 0] += torch.sin(torch.arange(16.0) * (0.5 + labels[:, None]))[:, None]
    model, opts = Swin(), get_options()
    loader = poptorch.DataLoader(
        opts,
        torch.utils.data.TensorDataset(images, labels),
        batch_size=4,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy.SharedMemory},
    )
    assert loader._combined_batch_size == 16
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for epoch in range(EPOCHS):
        losses += train(training_model, loader)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * (epoch + 1) / EPOCHS))
        training_model.setOptimizer(optimizer)
    loader.terminate()
    training_model.detachFromDevice()
    check_learned(losses, 0.8)
    assert accuracy(model.eval()(images), labels) > 0.7


if __name__ == "__main__":
    main()
