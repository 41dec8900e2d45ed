"""An ensemble with a member on each IPU: sharded inference averages them, a phase for each member trains them."""

import torch
from program_kit import accuracy, check_learned, inferred, train
from torch import nn

import poptorch

NAMES = ["member0", "member1", "member2"]


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3)) for _ in NAMES)

    def forward(self, x, labels=None):
        losses, outputs = [], []
        for i, member in enumerate(self.members):
            with poptorch.Block(NAMES[i], ipu_id=i):
                logits = member(x)
                outputs.append(torch.softmax(logits, dim=-1))
                if labels is not None:
                    losses.append(nn.functional.cross_entropy(logits, labels))
        with poptorch.Block("combine", ipu_id=len(NAMES) - 1):
            mean = torch.stack(outputs).mean(dim=0)
            if labels is None:
                return mean, -(mean * torch.log(mean + 1e-9)).sum(dim=-1)
            return mean, poptorch.identity_loss(sum(losses), reduction="mean")


def spirals(count):
    labels, radius = torch.arange(count) % 3, torch.rand(count)
    angle = 2.1 * labels + 3 * radius + 0.1 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels


torch.manual_seed(0)
stages = [poptorch.Stage(name).ipu(i) for i, name in enumerate(NAMES)]
sharded = poptorch.ShardedExecution(*stages, poptorch.Stage("combine").ipu(len(NAMES) - 1))
phased = poptorch.SerialPhasedExecution(*[poptorch.Phase(name) for name in [*NAMES, "combine"]])
ensemble = Ensemble()
opts = poptorch.Options().autoRoundNumIPUs(True)
inference_opts = opts.clone()
opts.setExecutionStrategy(phased)
inference_opts.setExecutionStrategy(sharded)
trainer = poptorch.trainingModel(ensemble, opts, poptorch.optim.Adam(ensemble.parameters(), lr=0.02))
check_learned(train(trainer, (spirals(60) for _ in range(150))), 0.6)
trainer.detachFromDevice()
x, labels = spirals(300)
assert accuracy(inferred(ensemble, x, options=inference_opts, tolerance=1e-3)[0], labels) > 0.75
