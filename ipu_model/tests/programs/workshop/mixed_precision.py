"""Half precision step by step: casts, float32 master parts, loss scaling by hand and automatic, partials."""

import argparse

import torch
import torch.nn as nn

import poptorch


class CNN(nn.Module):
    def __init__(self, half_layers="all"):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(16 * 4 * 4, 4)
        self.half_layers = half_layers
        if half_layers == "all":
            self.half()
        elif half_layers == "convolutions":
            self.conv1.half()
            self.conv2.half()

    def forward(self, x, labels=None):
        x = x.to(self.conv1.weight.dtype)
        x = torch.relu(self.norm(self.conv1(x).to(self.norm.weight.dtype)))
        x = torch.relu(self.conv2(x.to(self.conv2.weight.dtype)))
        logits = self.fc(x.flatten(1).to(self.fc.weight.dtype))
        if labels is None:
            return logits
        loss = nn.functional.cross_entropy(logits.float(), labels)
        return logits, loss


def get_options(args, automatic):
    opts = poptorch.Options()
    opts.Precision.enableStochasticRounding(True)
    opts.Precision.setPartialsType(torch.half)
    opts.Precision.runningStatisticsAlwaysFloat(True)
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat) if args.upcast else None
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.Training.setAutomaticLossScaling(automatic)
    return opts


def get_optimizer(model, args, automatic):
    groups = [
        {"params": [p for p in model.parameters() if p.dtype == torch.half]},
        {"params": [p for p in model.parameters() if p.dtype == torch.float]},
    ]
    return poptorch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=args.lr,
        loss_scaling=1.0 if automatic else args.loss_scaling,
        accum_type=torch.half,
    )


def run(name, args, half_layers, automatic):
    torch.manual_seed(0)
    labels = torch.arange(64) % 4
    images = 0.5 * torch.randn(64, 1, 11, 11)
    images[torch.arange(64), 0, 2 * labels] += 1
    model = CNN(half_layers)
    opts = get_options(args, automatic)
    training_model = poptorch.trainingModel(model, opts, get_optimizer(model, args, automatic))
    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(images, labels), batch_size=8, shuffle=True)
    losses = [training_model(*batch)[1].item() for _ in range(args.epochs) for batch in loader]
    training_model.destroy()
    model.eval()
    inference_model = poptorch.inferenceModel(model)
    logits = inference_model(images)
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    print(f"{name}: logits {logits.dtype}, loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy:.2f}")
    assert losses[-1] < 0.6 * losses[0]
    assert accuracy > 0.8
    return logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--loss-scaling", type=float, default=256.0)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--upcast", action="store_true")
    args = parser.parse_args()
    assert run("all in half", args, "all", automatic=False).dtype == torch.half
    assert run("half convolutions", args, "convolutions", automatic=False).dtype == torch.float
    run("float", args, "none", automatic=False)
    run("automatic loss scaling", args, "all", automatic=True)


if __name__ == "__main__":
    main()
