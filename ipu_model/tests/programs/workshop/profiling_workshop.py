"""Trace points in the program, a profile of the compiled model, cycles, latencies, and an executable that is reused."""

import logging
import os
import tempfile
import time

import torch
import torch.nn as nn

import poptorch

poptorch.setLogLevel("WARN")
logger = logging.getLogger("workshop")
channel = poptorch.profiling.Channel("workshop")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1, self.linear2, self.norm = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x):
        with poptorch.Attribute(__outline={"layer": "block"}):
            return self.norm(x + self.linear2(nn.functional.gelu(self.linear1(x))))


class Regressor(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x, y=None):
        for i, block in enumerate(self.blocks):
            with poptorch.NameScope(f"block{i}"):
                x = block(x)
            poptorch.set_available_memory(x, 0.3) if i == 0 and poptorch.isRunningOnIpu() else None
        out = self.head(x)
        if y is None:
            return out
        return out, nn.functional.mse_loss(out, y)


class DataSource:
    def next_batch(self):
        x = torch.randn(32, 16)
        return x, x[:, :1] * 0.5


def main():
    torch.manual_seed(0)
    source = DataSource()
    channel.instrument(source, "next_batch")
    with tempfile.TemporaryDirectory() as folder:
        opts = poptorch.Options()
        opts.logDir(folder)
        opts.logCycleCount(True)
        opts.enableProfiling(os.path.join(folder, "profile"))
        opts.enableExecutableCaching(os.path.join(folder, "cache"))
        opts.deviceIterations(2)
        model = Regressor()
        trainer = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.05))
        losses, start = [], time.perf_counter()
        with channel.tracepoint("train"):
            for _ in range(20):
                _, loss = trainer(*source.next_batch())
                losses.append(loss.item())
        print(f"{20 / (time.perf_counter() - start):.1f} calls/s, {trainer.cycleCount()} cycles in the last")
        minimum, maximum, average = trainer.getComputeLatency()
        print(f"compute latency {minimum:.2e} / {maximum:.2e} / {average:.2e} s")
        for kind in ("getPerfCounters", "getHostIpuLatency", "getIpuHostLatency", "getLatency"):
            assert getattr(trainer, kind)() is not None
        files = sorted(name for _, _, names in os.walk(os.path.join(folder, "profile")) for name in names)
        print("profile:", files)

        path = os.path.join(folder, "trainer.poptorch")
        trainer.save(path, export_model=True, save_rng_state=True)
        trainer.copyWeightsToHost()
        trainer.destroy()
        loaded = poptorch.load(path)
        _, loss = loaded(*source.next_batch())
        print(f"loss of the loaded executable {loss.item():.4f} after {losses[-1]:.4f}")
    assert files
    assert minimum <= average <= maximum
    assert losses[-1] < losses[0]
    assert loss.item() < losses[0]


if __name__ == "__main__":
    main()
