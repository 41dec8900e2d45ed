"""Two tasks with learned weights of their losses, a dictionary of outputs, and constant and variable learning rates."""

import torch
from program_kit import accuracy
from torch import Tensor, nn

import poptorch

FEATURES, HIDDEN, CLASSES, BATCH, STEPS, RATE = 12, 24, 3, 16, 60, 0.01


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.SiLU(), nn.Dropout(p=0.1))
        self.heads = nn.ModuleDict({"kind": nn.Linear(HIDDEN, CLASSES), "size": nn.Linear(HIDDEN, 1)})
        self.log_variance = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})
        self.criteria = {"kind": nn.CrossEntropyLoss(), "size": nn.SmoothL1Loss()}

    def forward(self, x: Tensor, targets: dict[str, Tensor] | None = None):
        h = self.trunk(x)
        outputs = {"kind": self.heads["kind"](h), "size": self.heads["size"](h).squeeze(-1)}
        if targets is None:
            return outputs
        losses = {name: criterion(outputs[name], targets[name]) for name, criterion in self.criteria.items()}
        total = sum(torch.exp(-weight) * losses[name] + weight for name, weight in self.log_variance.items())
        return outputs, losses, poptorch.identity_loss(total, reduction="none")


torch.manual_seed(0)
x = torch.randn(BATCH, FEATURES)
scores = x @ torch.randn(FEATURES, CLASSES + 1)
targets = {"kind": scores[:, :-1].argmax(dim=1), "size": torch.tanh(scores[:, -1])}
model = MultiTask()
groups = [
    {"params": [*model.trunk.parameters(), *model.heads.parameters()], "lr": RATE},
    {"params": model.log_variance.parameters(), "lr": RATE / 2},
]
optimizer = poptorch.optim.Adam(groups, lr=RATE)
optimizer.variable_attrs.markAsConstant("betas")
optimizer.variable_attrs.markAsConstant("eps")
trainer = poptorch.trainingModel(model, poptorch.Options(), optimizer)
history = []
for step in range(STEPS):
    outputs, losses, total = trainer(x, targets)
    history.append({name: value.item() for name, value in losses.items()})
    if step == STEPS // 2:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        trainer.setOptimizer(optimizer)
assert set(outputs) == {"kind", "size"}
assert outputs["kind"].shape == (BATCH, CLASSES)
assert all(history[-1][name] < 0.6 * history[0][name] for name in history[0]), history
assert any(abs(value.item()) > 1e-3 for value in model.log_variance.values())
trainer.detachFromDevice()
assert accuracy(poptorch.inferenceModel(model.eval())(x)["kind"], targets["kind"]) > 0.8
