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


def trained(make, arguments, options=None):
    """Return the weights after training on the IPU, or on the CPU without options."""
    model, lr = copy.deepcopy(start), arguments["lr"]
    first, second = model.network[0].parameters(), model.network[2].parameters()
    optimizer = make([{"params": first}, {"params": second, "lr": lr / 2}], **arguments)
    executor = poptorch.trainingModel(model, options, optimizer) if options else model
    for step in range(STEPS):
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] *= 0.1
            if options:
                executor.setOptimizer(optimizer)
        loss = executor(*data(step))[1]
        if not options:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if options:
        executor.detachFromDevice()
    return [parameter.detach() for parameter in model.parameters()]


warnings.simplefilter("ignore")
torch.manual_seed(0)
layers = torch.nn.Linear(6, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3)
start = WithLoss(torch.nn.Sequential(*layers), torch.nn.functional.cross_entropy)
for name, arguments in OPTIMIZERS.items():
    ours, theirs = (getattr(library, name.split(",")[0]) for library in (poptorch.optim, torch.optim))
    reference = trained(theirs, arguments)
    check_close(trained(ours, arguments, poptorch.Options()), reference)
    # PyTorch's own optimiser is converted; unknown attributes of groups are allowed, then.
    check_close(trained(theirs, arguments, poptorch.Options().relaxOptimizerAttributesChecks()), reference)

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
