"""Control flow on the device (cond, for_loop, dynamic_slice) and a part of the model that stays on the host."""

import json

import torch
import torch.nn as nn

import poptorch


class SlidingWindow(nn.Module):
    """Take a window at a position that is known at run time only, change it and put it back."""

    def forward(self, series, start):
        window = poptorch.dynamic_slice(series, 1, start, 4, 1)
        smoothed = window.mean(dim=1, keepdim=True).expand_as(window).contiguous()
        return poptorch.dynamic_update(series, smoothed, 1, start, 4), window


class PowerIteration(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, matrix, vector):
        def body(matrix, vector):
            vector = matrix @ vector
            return matrix, vector / torch.norm(vector)

        _, vector = poptorch.for_loop(self.steps, body, [matrix, vector])
        return vector.t() @ matrix @ vector, vector


class Switch(nn.Module):
    """A cheap or an expensive expert, decided by the input."""

    def __init__(self):
        super().__init__()
        self.cheap, self.expensive = nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, confident):
        return poptorch.cond(confident, lambda x: self.cheap(x), [x], lambda x: self.expensive(x), [x])[0]


class HostLookup(nn.Module):
    """The table is too large for the device: it is looked up on the host in the middle of the model."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 6)
        self.host_op = poptorch.CPU(self.table.forward, "MyTable")
        self.head = nn.Linear(6, 2)

    def forward(self, tokens):
        embedded = self.host_op(tokens)
        return self.head(embedded.mean(dim=1))


def main():
    torch.manual_seed(0)
    results = {}

    series = torch.arange(24.0).view(2, 12)
    updated, window = poptorch.inferenceModel(SlidingWindow())(series, torch.tensor([5]))
    assert torch.equal(window, series[:, 5:9])
    expected = series.clone()
    expected[:, 5:9] = series[:, 5:9].mean(dim=1, keepdim=True)
    assert torch.equal(updated, expected)
    results["window"] = window.tolist()

    base = torch.randn(5, 5)
    matrix = base @ base.t()
    value, _ = poptorch.inferenceModel(PowerIteration(60))(matrix, torch.ones(5, 1))
    largest = torch.linalg.eigvalsh(matrix)[-1]
    torch.testing.assert_close(value.flatten()[0], largest, rtol=1e-2, atol=1e-3)
    results["largest eigenvalue"] = value.item()

    switch = Switch()
    model = poptorch.inferenceModel(switch)
    x = torch.randn(3, 6)
    for confident, expert in ((True, switch.cheap), (False, switch.expensive)):
        torch.testing.assert_close(model(x, torch.tensor([confident])), expert(x), rtol=1e-4, atol=1e-5)

    lookup = HostLookup()
    tokens = torch.randint(1000, (4, 3))
    out = poptorch.inferenceModel(lookup)(tokens)
    torch.testing.assert_close(out, lookup.head(lookup.table(tokens).mean(dim=1)), rtol=1e-4, atol=1e-5)
    results["lookup"] = out.shape[0]
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
