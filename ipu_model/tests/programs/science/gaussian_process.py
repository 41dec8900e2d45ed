"""Gaussian-process regression without factorisations: conjugate gradients on the device, hyper-parameters by search."""

import itertools

import torch
from program_kit import check_close
from torch import nn

import poptorch


class RBFKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("length_scale", torch.tensor([1.0]))
        self.register_buffer("noise", torch.tensor([0.1]))

    def forward(self, a, b):
        squared = (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(dim=-1)
        return torch.exp(-0.5 * squared / self.length_scale**2)


class Predictor(nn.Module):
    """Solves (K + noise I) v = [y, K*] for all right-hand sides at once."""

    def __init__(self, kernel, iterations):
        super().__init__()
        self.kernel, self.iterations = kernel, iterations

    def solve(self, matrix, right):
        def body(x, r, p, rr, matrix):
            product = matrix @ p
            alpha = rr / ((p * product).sum(dim=0, keepdim=True) + 1e-12)
            x, r = x + alpha * p, r - alpha * product
            new = (r * r).sum(dim=0, keepdim=True)
            return x, r, r + new / (rr + 1e-12) * p, new, matrix

        rr = (right * right).sum(dim=0, keepdim=True)
        return poptorch.for_loop(self.iterations, body, [torch.zeros_like(right), right, right, rr, matrix])[0]

    def forward(self, x, y, x_test):
        matrix = self.kernel(x, x) + torch.diag(self.kernel.noise.expand(len(x)))
        cross = self.kernel(x, x_test)
        solved = self.solve(matrix, torch.cat([y.unsqueeze(1), cross], dim=1))
        mean = cross.t() @ solved[:, :1]
        variance = 1.0 + self.kernel.noise - (cross * solved[:, 1:]).sum(dim=0)
        return mean.squeeze(1), variance


def reference(x, y, x_test, length_scale, noise):
    def kernel(a, b):
        return torch.exp(-0.5 * torch.cdist(a, b) ** 2 / length_scale**2)

    x, y, x_test = x.double(), y.double(), x_test.double()
    cholesky = torch.linalg.cholesky(kernel(x, x) + noise * torch.eye(len(x), dtype=torch.float64))
    cross = kernel(x, x_test)
    mean = cross.t() @ torch.cholesky_solve(y.unsqueeze(1), cholesky)
    variance = 1 + noise - (cross * torch.cholesky_solve(cross, cholesky)).sum(dim=0)
    return mean.squeeze(1).float(), variance.float()


torch.manual_seed(0)
x, x_test = torch.linspace(-3, 3, 24).unsqueeze(1), torch.linspace(-2.8, 2.8, 15).unsqueeze(1)
y, truth = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(24), torch.sin(2 * x_test[:, 0])
kernel = RBFKernel()
opts = poptorch.Options().updatableNamedBuffers(["kernel.length_scale", "kernel.noise"])
model = poptorch.inferenceModel(Predictor(kernel, iterations=30), opts)
scores = {}
for length_scale, noise in itertools.product((0.3, 0.8, 3.0), (0.02, 0.1)):
    kernel.length_scale.fill_(length_scale)
    kernel.noise.fill_(noise)
    if model.isCompiled():
        model.copyNamedBuffersToDevice()
    mean, variance = model(x, y, x_test)
    check_close((mean, variance), reference(x, y, x_test, length_scale, noise), 0.02)
    scores[length_scale, noise] = ((truth - mean) ** 2 / variance + variance.log()).mean().item()
assert min(scores, key=scores.get)[0] == 0.8, scores
