"""A hyper-network writes the weights of a small network for each task; functional layers apply them."""

import torch
from program_kit import check_learned, inferred, train
from torch import nn

import poptorch

TASKS, CONTEXT, HIDDEN = 8, 10, 12
SHAPES = [(HIDDEN, 1), (HIDDEN,), (1, HIDDEN), (1,)]
SIZES = [HIDDEN, HIDDEN, HIDDEN, 1]


class MetaLearner(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width))
        self.decode = nn.Linear(width, sum(SIZES))
        nn.init.normal_(self.decode.weight, std=0.02)
        self.bias, self.weight = nn.Parameter(torch.randn(HIDDEN)), nn.Parameter(torch.randn(HIDDEN, 1))

    def forward(self, context, x, y=None):
        parts = torch.split(self.decode(torch.relu(self.encode(context).mean(dim=1))), SIZES, dim=1)
        w1, b1, w2, b2 = (part.view(-1, *shape) for part, shape in zip(parts, SHAPES))
        h = torch.tanh(torch.baddbmm((b1 + self.bias).unsqueeze(1), x, (w1 + self.weight).transpose(1, 2)))
        out = torch.baddbmm(b2.unsqueeze(1), h, w2.transpose(1, 2))
        return out if y is None else (out, nn.functional.mse_loss(out, y))


def sample_tasks(count):
    x = 4 * torch.rand(count, 2 * CONTEXT, 1) - 2
    y = (torch.rand(count, 1, 1) + 0.5) * torch.sin(x + 3 * torch.rand(count, 1, 1))
    context = torch.cat([x, y], dim=-1)[:, :CONTEXT].contiguous()
    return context, x[:, CONTEXT:].contiguous(), y[:, CONTEXT:].contiguous()


torch.manual_seed(0)
model = MetaLearner()
opts = poptorch.Options().deviceIterations(10)
trainer = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=3e-3))
check_learned(train(trainer, (sample_tasks(10 * TASKS) for _ in range(80))), 0.4)
state = {name: value.clone() for name, value in model.state_dict().items()}
trainer.destroy()
fresh = MetaLearner()
fresh.load_state_dict(state)
context, x, y = sample_tasks(64)
assert nn.functional.mse_loss(inferred(fresh, context, x, tolerance=1e-3), y) < 0.5 * y.var()
