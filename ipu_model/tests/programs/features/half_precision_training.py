"""Train in half precision in three ways: static loss scaling, automatic loss scaling, single-precision weights."""

import enum
from types import SimpleNamespace

import torch
from torch import nn

import poptorch


class Precision(enum.Enum):
    SINGLE = "32.32"
    MIXED = "16.32"
    HALF = "16.16"


class MLP(nn.Module):
    def __init__(self, cast=None):
        super().__init__()
        self.cast = cast
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
        self.loss = nn.CrossEntropyLoss(reduction="mean")

    def forward(self, x, y):
        if self.cast is not None:
            x = x.to(self.cast)
        out = self.layers(x)
        loss = self.loss(out.float(), y)
        return out, loss


def build_options(precision, automatic):
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.Training.setAutomaticLossScaling(automatic)
    opts.randomSeed(0)
    if precision is not Precision.SINGLE:
        opts.Precision.enableStochasticRounding(True)
        opts.Precision.setPartialsType(torch.half)
    opts.Precision.enableFloatingPointExceptions(False)
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    return opts


def build_optimizer(model, precision, loss_scaling):
    half = torch.float16 if precision is not Precision.SINGLE else torch.float32
    return poptorch.optim.AdamW(
        model.parameters(),
        lr=1e-2,
        eps=1e-6,
        loss_scaling=loss_scaling,
        accum_type=half,
        first_order_momentum_accum_type=half,
        second_order_momentum_accum_type=torch.float32,
    )


def train(precision, automatic=False, loss_scaling=128.0, steps=20):
    torch.manual_seed(0)
    model = MLP(cast=torch.half if precision is Precision.HALF else None)
    if precision is Precision.HALF:
        model.half()
    dtype = torch.half if precision is not Precision.SINGLE else torch.float
    opts = build_options(precision, automatic)
    optimizer = build_optimizer(model, precision, loss_scaling)
    training = poptorch.trainingModel(model, opts, optimizer)
    centres = torch.randn(4, 16)
    losses = []
    for step in range(steps):
        y = torch.randint(0, 4, (32,))
        x = (centres[y] + 0.3 * torch.randn(32, 16)).to(dtype if precision is Precision.HALF else torch.float)
        out, loss = training(x, y)
        losses.append(loss.item())
        if not automatic and step == steps // 2:
            optimizer.loss_scaling = 2 * loss_scaling
            training.setOptimizer(optimizer)
    training.destroy()
    return losses, out.dtype, next(model.parameters()).dtype


def main():
    args = SimpleNamespace(loss_scaling=1024)
    single, dtype, weights = train(Precision.SINGLE, loss_scaling=1.0)
    assert dtype == weights == torch.float32
    half, dtype, weights = train(Precision.HALF, loss_scaling=args.loss_scaling)
    assert dtype == weights == torch.float16
    automatic, *_ = train(Precision.HALF, automatic=True, loss_scaling=1.0)
    mixed, dtype, weights = train(Precision.MIXED, loss_scaling=args.loss_scaling)
    assert weights == torch.float32
    for name, losses in {"single": single, "half": half, "automatic": automatic, "mixed": mixed}.items():
        print(f"{name:10s} {losses[0]:.4f} -> {losses[-1]:.4f}")
        assert losses[-1] < 0.4 * losses[0]
    assert abs(half[0] - single[0]) < 0.05


if __name__ == "__main__":
    main()
