"""K-means with poptorch.nearest for the assignment, then Lloyd's algorithm in buffers of a second model."""

import itertools

import torch
from program_kit import check_close, on_ipu
from torch import nn

import poptorch

POINTS, CLUSTERS, DIM, STEPS = 200, 4, 3, 6


def farthest_start(points):
    """The first centres are points far from one another."""
    return poptorch.fps(points, [0, POINTS], ratio=CLUSTERS / POINTS, random_start=False)


class Lloyd(nn.Module):
    def __init__(self, centres):
        super().__init__()
        self.register_buffer("centres", centres)

    def forward(self, points):
        squared = (points.unsqueeze(1) - self.centres.unsqueeze(0)).pow(2).sum(dim=-1)
        distance, nearest = torch.min(squared, dim=1)
        member = nn.functional.one_hot(nearest, CLUSTERS).to(points.dtype)
        counts = member.sum(dim=0).unsqueeze(1)
        means = (member.t() @ points) / torch.clamp(counts, min=1)
        self.centres.copy_(torch.where(counts > 0, means, self.centres))
        return distance.sum(), nearest


torch.manual_seed(0)
truth = torch.cat([torch.zeros(1, DIM), 4 * torch.eye(DIM)])
points = truth[torch.arange(POINTS) % CLUSTERS] + 0.5 * torch.randn(POINTS, DIM)
start = on_ipu(farthest_start)(points)
assert start.shape == (CLUSTERS,)
expected = points[start.long()]

lloyd = Lloyd(expected.clone())
step = poptorch.inferenceModel(lloyd, poptorch.Options().updatableNamedBuffers(["centres"]))
inertia = [step(points)[0].item() for _ in range(STEPS)]
step.copyWeightsToHost()
for _ in range(STEPS):
    nearest = torch.cdist(points, expected).argmin(1)
    expected = torch.stack([points[nearest == k].mean(0) for k in range(CLUSTERS)])
check_close(lloyd.centres, expected)
assert all(later <= earlier + 1e-3 for earlier, later in itertools.pairwise(inertia)), inertia

sizes = torch.bincount(on_ipu(poptorch.nearest)(points, lloyd.centres).long(), minlength=CLUSTERS)
assert sizes.sum() == POINTS
assert sizes.min() > 40
