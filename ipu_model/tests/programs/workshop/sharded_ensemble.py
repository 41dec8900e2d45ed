"""An ensemble with a member on each IPU: sharded inference averages them, a phase for each member trains them."""

import argparse

import torch
import torch.nn as nn

import poptorch


class Member(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, x):
        return self.net(x)


class Ensemble(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.members = nn.ModuleList(Member(i) for i in range(count))

    def forward(self, x, labels=None):
        losses, outputs = [], []
        for i, member in enumerate(self.members):
            with poptorch.Block(f"member{i}", ipu_id=i):
                logits = member(x)
                outputs.append(torch.softmax(logits, dim=-1))
                if labels is not None:
                    losses.append(nn.functional.cross_entropy(logits, labels))
        with poptorch.Block("combine", ipu_id=len(self.members) - 1):
            mean = torch.stack(outputs).mean(dim=0)
            if labels is None:
                entropy = -(mean * torch.log(mean + 1e-9)).sum(dim=-1)
                return mean, entropy
            return mean, poptorch.identity_loss(sum(losses), reduction="mean")


def spirals(count):
    labels = torch.arange(count) % 3
    radius = torch.rand(count)
    angle = 2.1 * labels + 3 * radius + 0.1 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--strategy", choices=["sharded", "phased"], default="sharded")
    args = parser.parse_args()
    torch.manual_seed(0)
    names = [f"member{i}" for i in range(args.members)]
    if args.strategy == "sharded":
        strategy = poptorch.ShardedExecution(
            *[poptorch.Stage(n).ipu(i) for i, n in enumerate(names)], poptorch.Stage("combine").ipu(args.members - 1)
        )
    else:
        strategy = poptorch.SerialPhasedExecution(*[poptorch.Phase(n) for n in [*names, "combine"]])
    opts = poptorch.Options()
    opts.setExecutionStrategy(strategy)
    opts.autoRoundNumIPUs(True)
    ensemble = Ensemble(args.members)
    optimizer = poptorch.optim.Adam(ensemble.parameters(), lr=0.02)
    trainer = poptorch.trainingModel(ensemble, opts, optimizer)
    losses = [trainer(*spirals(60))[1].item() for _ in range(args.steps)]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    trainer.detachFromDevice()

    inference_opts = opts.clone()
    predictor = poptorch.inferenceModel(ensemble.eval(), inference_opts)
    x, labels = spirals(300)
    mean, entropy = predictor(x)
    accuracy = (mean.argmax(dim=1) == labels).float().mean().item()
    _, far = predictor(torch.zeros(300, 2))
    print(f"accuracy {accuracy:.2%}; entropy {entropy.mean():.3f} on data, {far.mean():.3f} at the centre")
    torch.testing.assert_close(mean, ensemble(x)[0], rtol=1e-3, atol=1e-4)
    assert losses[-1] < 0.6 * losses[0]
    assert accuracy > 0.75


if __name__ == "__main__":
    main()
