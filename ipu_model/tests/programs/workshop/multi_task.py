"""Two tasks with learned weights of their losses, a dictionary of outputs, and constant and variable learning rates."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import poptorch


@dataclass
class Config:
    features: int = 12
    hidden: int = 24
    classes: int = 3
    batch_size: int = 16
    steps: int = 60
    lr: float = 0.01


class MultiTask(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(config.features, config.hidden), nn.SiLU(), nn.Dropout(p=0.1))
        self.heads = nn.ModuleDict(
            {"kind": nn.Linear(config.hidden, config.classes), "size": nn.Linear(config.hidden, 1)}
        )
        self.log_variance = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})
        self.criteria = {"kind": nn.CrossEntropyLoss(), "size": nn.HuberLoss()}

    def forward(self, x: Tensor, targets: dict[str, Tensor] | None = None):
        h = self.trunk(x)
        outputs = {"kind": self.heads["kind"](h), "size": self.heads["size"](h).squeeze(-1)}
        if targets is None:
            return outputs
        losses = {name: criterion(outputs[name], targets[name]) for name, criterion in self.criteria.items()}
        total = sum(
            torch.exp(-self.log_variance[name]) * loss + self.log_variance[name] for name, loss in losses.items()
        )
        return outputs, losses, poptorch.identity_loss(total, reduction="none")


def batch(config: Config, count: int):
    generator = torch.Generator().manual_seed(count)
    projection = torch.randn(config.features, config.classes + 1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(count, config.features, generator=generator)
    scores = x @ projection
    return x, {"kind": scores[:, :-1].argmax(dim=1), "size": torch.tanh(scores[:, -1])}


def main():
    config = Config()
    torch.manual_seed(0)
    model = MultiTask(config)
    groups = [
        {"params": [*model.trunk.parameters(), *model.heads.parameters()], "lr": config.lr},
        {"params": model.log_variance.parameters(), "lr": config.lr / 2},
    ]
    optimizer = poptorch.optim.Adam(groups, lr=config.lr)
    optimizer.variable_attrs.markAsConstant("betas")
    optimizer.variable_attrs.markAsConstant("eps")
    trainer = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    history = []
    for step in range(config.steps):
        x, targets = batch(config, config.batch_size * (1 + step % 4) // (1 + step % 4))
        outputs, losses, total = trainer(x, targets)
        history.append({name: value.item() for name, value in losses.items()})
        if step == config.steps // 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            trainer.setOptimizer(optimizer)
    print("first", history[0], "last", history[-1], "total", total.item())
    assert set(outputs) == {"kind", "size"}
    assert outputs["kind"].shape == (config.batch_size, config.classes)
    weights = {name: value.item() for name, value in model.log_variance.items()}
    print("log variances", weights)
    trainer.detachFromDevice()

    predictor = poptorch.inferenceModel(model.eval())
    x, targets = batch(config, 16)
    outputs = predictor(x)
    accuracy = (outputs["kind"].argmax(-1) == targets["kind"]).float().mean().item()
    assert all(history[-1][name] < 0.6 * history[0][name] for name in history[0])
    assert any(abs(value) > 1e-3 for value in weights.values())
    assert accuracy > 0.8


if __name__ == "__main__":
    main()
