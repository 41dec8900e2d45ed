"""Loops, conditions and dynamic slices on the device, with host transfers that overlap the computation."""

import torch

import poptorch


class PowerIteration(torch.nn.Module):
    """The largest eigenvalue, by a loop on the device."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, matrix, vector):
        def body(matrix, vector):
            product = matrix @ vector
            return matrix, product / product.norm()

        _, vector = poptorch.for_loop(self.steps, body, [matrix, vector])
        return torch.dot(vector, matrix @ vector), vector


class Windows(torch.nn.Module):
    def forward(self, series, start):
        return poptorch.dynamic_slice(series, 1, start, 4, 1).mean(1)


class Update(torch.nn.Module):
    def forward(self, target, patch, start):
        return poptorch.dynamic_update(target, patch, 0, start, patch.size(0))


class Branches(torch.nn.Module):
    def forward(self, condition, x):
        def doubled(x):
            return x * 2

        def negated(x):
            return -x

        return poptorch.cond(condition, doubled, [x], negated, [x])[0]


class Overlapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapDeviceIterationLoop)
        x = torch.relu(self.linear(x))
        return poptorch.set_overlap_for_output(x, poptorch.OverlapMode.OverlapDeviceIterationLoop)


def eigenvalue():
    torch.manual_seed(0)
    root = torch.randn(5, 5)
    matrix = root @ root.t()
    value, _ = poptorch.inferenceModel(PowerIteration(60))(matrix, torch.ones(5))
    expected = torch.linalg.eigvalsh(matrix)[-1]
    print(f"largest eigenvalue {value.item():.4f}, exact {expected:.4f}")
    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-3)


def slices():
    windows = poptorch.inferenceModel(Windows())
    series = torch.arange(24.0).reshape(2, 12)
    for start in (0, 3, 6):
        expected = series[:, start : start + 4].mean(1)
        torch.testing.assert_close(windows(series, torch.tensor([start])), expected)

    update = poptorch.inferenceModel(Update())
    result = update(torch.zeros(6, 2), torch.ones(2, 2), torch.tensor([3]))
    assert result.sum().item() == 4 and result[3:5].eq(1).all()


def branches():
    model = poptorch.inferenceModel(Branches())
    x = torch.tensor([1.0, 2.0])
    assert model(torch.tensor([True]), x).tolist() == [2, 4]
    assert model(torch.tensor([False]), x).tolist() == [-1, -2]


def overlapped():
    model = Overlapped()
    opts = poptorch.Options()
    opts.deviceIterations(8)
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts.TensorLocations.numIOTiles(32)
    executor = poptorch.inferenceModel(model, opts)
    x = torch.randn(32, 16)
    torch.testing.assert_close(executor(x), torch.relu(x @ model.linear.weight.t() + model.linear.bias).detach())


if __name__ == "__main__":
    eigenvalue()
    slices()
    branches()
    overlapped()
