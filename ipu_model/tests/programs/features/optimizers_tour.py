"""Train the same network with every optimiser, PopTorch's and PyTorch's own, and compare with PyTorch on the CPU."""

import copy
import warnings

import torch
from program_kit import WithLoss, check_close, check_learned

import poptorch

STEPS = 8
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    "SGD, nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.95)},
    "Adam, L2": {"lr": 0.01, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "weight_decay": 0.2},
    "RMSprop": {"lr": 0.01, "alpha": 0.9},
    "RMSprop, centered": {"lr": 0.01, "momentum": 0.5, "centered": True},
}


def data(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)


def groups(model, lr):
    return [{"params": model.network[0].parameters()}, {"params": model.network[2].parameters(), "lr": lr / 2}]


def on_cpu(model, optimizer):
    for step in range(STEPS):
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] *= 0.1
        optimizer.zero_grad()
        model(*data(step))[1].backward()
        optimizer.step()


def on_ipu(model, optimizer, options):
    executor = poptorch.trainingModel(model, options, optimizer)
    for step in range(STEPS):
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] *= 0.1
            executor.setOptimizer(optimizer)
        executor(*data(step))
    executor.detachFromDevice()


warnings.simplefilter("ignore")
torch.manual_seed(0)
layers = torch.nn.Linear(6, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3)
start = WithLoss(torch.nn.Sequential(*layers), torch.nn.functional.cross_entropy)
for name, arguments in OPTIMIZERS.items():
    ours, theirs = (getattr(library, name.split(",")[0]) for library in (poptorch.optim, torch.optim))
    lr = arguments["lr"]
    reference, model, converted = (copy.deepcopy(start) for _ in range(3))
    on_cpu(reference, theirs(groups(reference, lr), **arguments))
    on_ipu(model, ours(groups(model, lr), **arguments), poptorch.Options())
    check_close(list(model.parameters()), list(reference.parameters()))
    # PyTorch's own optimiser is converted; unknown attributes of groups are allowed, then.
    options = poptorch.Options().relaxOptimizerAttributesChecks()
    on_ipu(converted, theirs(groups(converted, lr), **arguments), options)
    check_close(list(converted.parameters()), list(reference.parameters()))

model = copy.deepcopy(start)
lamb = poptorch.optim.LAMB(model.parameters(), lr=0.01, max_weight_norm=1.0, bias_correction=False)
executor = poptorch.trainingModel(model, poptorch.Options(), lamb)
check_learned([executor(*data(0))[1].item() for _ in range(20)], 1)
executor.destroy()

# The optimiser's state comes to the host, and goes back into another.
adam, other = (poptorch.optim.Adam(model.parameters(), lr=0.01) for _ in range(2))
executor = poptorch.trainingModel(model, poptorch.Options(), adam)
executor(*data(0))
state = adam.state_dict()
assert adam.has_state() and state["ipu_state"]
other.load_state_dict(state)
executor.setOptimizer(other)
executor(*data(1))
