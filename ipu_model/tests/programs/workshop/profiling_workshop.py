"""Trace points in the program, a profile of the compiled model, cycles, latencies, and an executable that is reused."""

import os

import torch
from program_kit import WithLoss, check_learned, train
from torch import nn

import poptorch

WIDTH = 16
poptorch.setLogLevel("WARN")
channel = poptorch.profiling.Channel("workshop")


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.number, self.norm = number, nn.LayerNorm(WIDTH)

    def forward(self, x):
        with poptorch.NameScope(f"block{self.number}"), poptorch.Attribute(__outline={"layer": "block"}):
            x = self.norm(x + self.layers(x))
            if self.number == 0 and poptorch.isRunningOnIpu():
                poptorch.set_available_memory(x, 0.3)
            return x


class DataSource:
    def next_batch(self):
        x = torch.randn(32, WIDTH)
        return x, x[:, :1] * 0.5


torch.manual_seed(0)
source = DataSource()
channel.instrument(source, "next_batch")
opts = poptorch.Options().logDir(".").logCycleCount(True).deviceIterations(2)
opts.enableProfiling("profile")
opts.enableExecutableCaching("cache")
model = WithLoss(nn.Sequential(*(Block(i) for i in range(3)), nn.Linear(WIDTH, 1)), nn.functional.mse_loss)
trainer = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.05))
with channel.tracepoint("train"):
    losses = train(trainer, (source.next_batch() for _ in range(20)))
check_learned(losses, 1)
assert trainer.cycleCount() > 0
minimum, maximum, average = trainer.getComputeLatency()
assert minimum <= average <= maximum
for kind in ("getPerfCounters", "getHostIpuLatency", "getIpuHostLatency", "getLatency"):
    assert getattr(trainer, kind)() is not None
assert any(names for _, _, names in os.walk("profile"))

trainer.save("trainer.poptorch", export_model=True, save_rng_state=True)
trainer.copyWeightsToHost()
trainer.destroy()
assert poptorch.load("trainer.poptorch")(*source.next_batch())[1].item() < losses[0]
