"""Train the same network with every optimiser, PopTorch's and PyTorch's own, and compare with PyTorch on the CPU."""

import copy
import warnings

import torch

import poptorch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x, y):
        out = self.b(torch.sigmoid(self.a(x)))
        return out, torch.nn.functional.cross_entropy(out, y)


OPTIMIZERS = {
    "SGD": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
    "SGD, nesterov": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (poptorch.optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95)}),
    "Adam, L2": (poptorch.optim.Adam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW": (poptorch.optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.2}),
    "RMSprop": (poptorch.optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9}),
    "RMSprop, centered": (poptorch.optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
}


def data(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)


def groups(model, lr):
    return [{"params": model.a.parameters()}, {"params": model.b.parameters(), "lr": lr / 2}]


def on_cpu(model, optimizer, steps):
    for step in range(steps):
        if step == steps // 2:
            optimizer.param_groups[0]["lr"] *= 0.1
        optimizer.zero_grad()
        model(*data(step))[1].backward()
        optimizer.step()
    return model


def on_ipu(model, optimizer, steps, options):
    executor = poptorch.trainingModel(model, options, optimizer)
    for step in range(steps):
        if step == steps // 2:
            optimizer.param_groups[0]["lr"] *= 0.1
            executor.setOptimizer(optimizer)
        executor(*data(step))
    executor.detachFromDevice()
    return model


def compare(name, ours, theirs):
    worst = max((p - q).abs().max().item() for p, q in zip(ours.parameters(), theirs.parameters()))
    print(f"{name:24s} largest difference {worst:.1e}")
    assert worst < 1e-4, name


def main(steps=8):
    torch.manual_seed(0)
    start = Model()
    for name, (ours, theirs, arguments) in OPTIMIZERS.items():
        lr = arguments["lr"]
        reference = copy.deepcopy(start)
        on_cpu(reference, theirs(groups(reference, lr), **arguments), steps)

        model = copy.deepcopy(start)
        on_ipu(model, ours(groups(model, lr), **arguments), steps, poptorch.Options())
        compare(name, model, reference)

        # PyTorch's own optimiser is converted; unknown attributes of groups are allowed, then.
        model = copy.deepcopy(start)
        options = poptorch.Options()
        options.relaxOptimizerAttributesChecks()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            on_ipu(model, theirs(groups(model, lr), **arguments), steps, options)
        compare(f"{name}, converted", model, reference)

    model = copy.deepcopy(start)
    lamb = poptorch.optim.LAMB(model.parameters(), lr=0.01, max_weight_norm=1.0, bias_correction=False)
    executor = poptorch.trainingModel(model, poptorch.Options(), lamb)
    losses = [executor(*data(0))[1].item() for _ in range(20)]
    assert losses[-1] < losses[0]
    executor.destroy()

    # The optimiser's state comes to the host, and goes back into another.
    adam = poptorch.optim.Adam(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, poptorch.Options(), adam)
    executor(*data(0))
    state = adam.state_dict()
    assert adam.has_state() and state["ipu_state"]
    other = poptorch.optim.Adam(model.parameters(), lr=0.01)
    other.load_state_dict(state)
    executor.setOptimizer(other)
    executor(*data(1))


if __name__ == "__main__":
    main()
