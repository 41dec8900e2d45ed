"""Loops, conditions and dynamic slices on the device, with host transfers that overlap the computation."""

import torch
from program_kit import check_close, on_ipu

import poptorch

LOOP = poptorch.OverlapMode.OverlapDeviceIterationLoop


def largest_eigenvalue(matrix, vector):
    def body(matrix, vector):
        product = matrix @ vector
        return matrix, product / product.norm()

    _, vector = poptorch.for_loop(60, body, [matrix, vector])
    return torch.dot(vector, matrix @ vector), vector


class Overlapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = poptorch.set_overlap_for_input(x, LOOP)
        return poptorch.set_overlap_for_output(torch.relu(self.linear(x)), LOOP)


torch.manual_seed(0)
root = torch.randn(5, 5)
matrix = root @ root.t()
value, _ = on_ipu(largest_eigenvalue)(matrix, torch.ones(5))
check_close(value, torch.linalg.eigvalsh(matrix)[-1], 1e-3)

windows = on_ipu(lambda series, start: poptorch.dynamic_slice(series, 1, start, 4, 1).mean(1))
series = torch.arange(24.0).reshape(2, 12)
for start in (0, 3, 6):
    check_close(windows(series, torch.tensor([start])), series[:, start : start + 4].mean(1))
update = on_ipu(lambda target, patch, start: poptorch.dynamic_update(target, patch, 0, start, patch.size(0)))
result = update(torch.zeros(6, 2), torch.ones(2, 2), torch.tensor([3]))
assert result.sum().item() == 4 and result[3:5].eq(1).all()

branches = on_ipu(lambda condition, x: poptorch.cond(condition, lambda x: x * 2, [x], lambda x: -x, [x])[0])
x = torch.tensor([1.0, 2.0])
assert branches(torch.tensor([True]), x).tolist() == [2, 4]
assert branches(torch.tensor([False]), x).tolist() == [-1, -2]

model = Overlapped()
opts = poptorch.Options().deviceIterations(8)
opts.setExecutionStrategy(poptorch.ShardedExecution())
opts.TensorLocations.numIOTiles(32)
x = torch.randn(32, 16)
check_close(poptorch.inferenceModel(model, opts)(x), torch.relu(x @ model.linear.weight.t() + model.linear.bias))
