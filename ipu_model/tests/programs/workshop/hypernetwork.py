"""A hyper-network writes the weights of a small network for each task; functional layers apply them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

TASKS, CONTEXT, HIDDEN = 8, 10, 12


class HyperNetwork(nn.Module):
    def __init__(self, shapes, width=48):
        super().__init__()
        self.shapes = shapes
        self.sizes = [int(torch.tensor(shape).prod()) for shape in shapes]
        self.encode = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width))
        self.decode = nn.Linear(width, sum(self.sizes))
        nn.init.normal_(self.decode.weight, std=0.02)

    def forward(self, context):
        code = self.encode(context).mean(dim=1)
        parts = torch.split(self.decode(torch.relu(code)), self.sizes, dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self.shapes)]


class MetaLearner(nn.Module):
    def __init__(self):
        super().__init__()
        self.hyper = HyperNetwork([(HIDDEN, 1), (HIDDEN,), (1, HIDDEN), (1,)])
        self.shared_bias = nn.Parameter(torch.randn(HIDDEN))
        self.shared_weight = nn.Parameter(torch.randn(HIDDEN, 1))

    def forward(self, context, x, y=None):
        w1, b1, w2, b2 = self.hyper(context)
        h = torch.tanh(
            torch.baddbmm((b1 + self.shared_bias).unsqueeze(1), x, (w1 + self.shared_weight).transpose(1, 2))
        )
        out = torch.baddbmm(b2.unsqueeze(1), h, w2.transpose(1, 2))
        if y is None:
            return out
        return out, F.mse_loss(out, y)


def sample_tasks(count):
    amplitude, phase = torch.rand(count, 1, 1) + 0.5, 3 * torch.rand(count, 1, 1)
    x = 4 * torch.rand(count, 2 * CONTEXT, 1) - 2
    y = amplitude * torch.sin(x + phase)
    context = torch.cat([x, y], dim=-1)[:, :CONTEXT].contiguous()
    return context, x[:, CONTEXT:].contiguous(), y[:, CONTEXT:].contiguous()


def main():
    torch.manual_seed(0)
    model = MetaLearner()
    opts = poptorch.Options().deviceIterations(10)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = poptorch.trainingModel(model, opts, optimizer)
    losses = [trainer(*sample_tasks(10 * TASKS))[1].item() for _ in range(80)]
    print(f"loss {losses[0]:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.destroy()

    fresh = MetaLearner()
    fresh.load_state_dict(state)
    predictor = poptorch.inferenceModel(fresh.eval())
    context, x, y = sample_tasks(64)
    predicted = predictor(context, x)
    error = F.mse_loss(predicted, y).item()
    print(f"error on new tasks {error:.3f}, of the mean {y.var().item():.3f}")
    torch.testing.assert_close(predicted, fresh(context, x), rtol=1e-3, atol=1e-4)
    assert sum(losses[-5:]) / 5 < 0.4 * losses[0]
    assert error < 0.5 * y.var().item()


if __name__ == "__main__":
    main()
