"""PopTorch's optimisers as ordinary PyTorch optimisers on the CPU (poptorch-optim.md, sections 1 and 4.5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_support import MAKERS

from poptorch import optim


def train(make: Any, steps: int = 4) -> torch.Tensor:
    """Return the weights after a few full-batch steps of a linear regression."""
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 5, generator=source), torch.randn(16, generator=source)
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = make([weight])
    for _ in range(steps):
        optimizer.zero_grad()
        ((x @ weight - y) ** 2).mean().backward()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_stepping_by_hand_equals_pytorch(name: str) -> None:
    shared: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
    if name in ("SGD", "RMSprop"):
        shared["momentum"] = 0.9
    own = {"loss_scaling": 128.0, "accum_type": torch.float16}
    actual = train(lambda p: MAKERS[name](p, **shared, **own))
    expected = train(lambda p: getattr(torch.optim, name)(p, **shared))
    assert torch.equal(actual, expected), "options of the device are ignored here"


def lamb_by_the_book(steps: int, lr: float, wd: float, limit: float, corrects: bool) -> Any:
    """Section 4.5, literally, in float64, as an optimiser."""

    class Book(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})
            self.t, self.m, self.s = 0, torch.zeros(5).double(), torch.zeros(5).double()

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            (w,) = self.param_groups[0]["params"]
            g, self.t = w.grad.double(), self.t + 1
            self.m = 0.9 * self.m + 0.1 * g
            self.s = 0.999 * self.s + 0.001 * g * g
            mc = self.m / (1 - 0.9**self.t) if corrects else self.m
            sc = self.s / (1 - 0.999**self.t) if corrects else self.s
            x = mc / (sc.sqrt() + 1e-8) + wd * w.double()
            w.copy_(w.double() - lr * min(w.double().norm().item(), limit) / x.norm().item() * x)

    return train(Book, steps)


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_lamb_steps_by_its_formula(corrects: bool, limit: float | None) -> None:
    actual = train(lambda p: optim.LAMB(p, 0.05, weight_decay=0.1, bias_correction=corrects, max_weight_norm=limit))
    expected = lamb_by_the_book(4, 0.05, 0.1, 65500.0 if limit is None else limit, corrects)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_lamb_uses_the_attribute_not_the_groups_limit_on_the_weight_norm() -> None:
    def make(params: Any) -> optim.LAMB:
        lamb = optim.LAMB([{"params": params, "max_weight_norm": 1e-6}], lr=0.05, weight_decay=0.1)
        assert lamb.param_groups[0]["max_weight_norm"] == 1e-6
        return lamb

    torch.testing.assert_close(train(make), train(lambda p: optim.LAMB(p, lr=0.05, weight_decay=0.1)))


def test_lamb_keeps_its_host_state_in_the_state_dict_and_returns_the_closures_loss() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    idle = torch.nn.Parameter(torch.ones(3))
    lamb = optim.LAMB([weight, idle], lr=0.1)

    def closure() -> torch.Tensor:
        lamb.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert lamb.step(closure).item() == 3.0
    assert idle.detach().tolist() == [1.0, 1.0, 1.0]
    state_dict = lamb.state_dict()
    assert set(state_dict["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert state_dict["state"][0]["step"].item() == 1.0
    assert 1 not in state_dict["state"]
    assert state_dict["ipu_state"] is None


@pytest.mark.parametrize("name", MAKERS)
def test_schedulers_drive_every_optimizer(name: str) -> None:
    optimizer = MAKERS[name]([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_the_options_do_not_disturb_pytorchs_printing() -> None:
    text = repr(optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5, loss_scaling=2.0))
    assert text.startswith("SGD (")
    assert "lr: 0.5" in text
