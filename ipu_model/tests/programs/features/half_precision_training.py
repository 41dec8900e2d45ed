"""Train in half precision in three ways: static loss scaling, automatic loss scaling, single-precision weights."""

import torch
from program_kit import WithLoss, check_learned
from torch import nn

import poptorch

STEPS = 20


def build_options(single, automatic):
    opts = poptorch.Options().randomSeed(0)
    opts.Training.gradientAccumulation(4)
    opts.Training.setAutomaticLossScaling(automatic)
    if not single:
        opts.Precision.enableStochasticRounding(True)
        opts.Precision.setPartialsType(torch.half)
    opts.Precision.enableFloatingPointExceptions(False)
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    return opts


def train(weights, state, automatic=False, loss_scaling=1.0):
    torch.manual_seed(0)
    layers = nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4)
    model = WithLoss(nn.Sequential(*layers), lambda out, y: nn.functional.cross_entropy(out.float(), y)).to(weights)
    optimizer = poptorch.optim.AdamW(
        model.parameters(),
        lr=1e-2,
        eps=1e-6,
        loss_scaling=loss_scaling,
        accum_type=state,
        first_order_momentum_accum_type=state,
        second_order_momentum_accum_type=torch.float32,
    )
    training = poptorch.trainingModel(model, build_options(state is torch.float, automatic), optimizer)
    centres, losses = torch.randn(4, 16), []
    for step in range(STEPS):
        y = torch.randint(0, 4, (32,))
        out, loss = training((centres[y] + 0.3 * torch.randn(32, 16)).to(weights), y)
        losses.append(loss.item())
        if not automatic and step == STEPS // 2:
            optimizer.loss_scaling = 2 * loss_scaling
            training.setOptimizer(optimizer)
    training.destroy()
    assert out.dtype == next(model.parameters()).dtype == weights
    check_learned(losses, 0.4)
    return losses


single = train(torch.float, torch.float)
half = train(torch.half, torch.half, loss_scaling=1024)
train(torch.half, torch.half, automatic=True)
train(torch.float, torch.half, loss_scaling=1024)
assert abs(half[0] - single[0]) < 0.05
