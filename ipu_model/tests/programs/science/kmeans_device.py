"""K-means with poptorch.nearest for the assignment, then Lloyd's algorithm in buffers of a second model."""

import itertools

import numpy as np
import torch
import torch.nn as nn

import poptorch

POINTS, CLUSTERS, DIM = 200, 4, 3


class Assign(nn.Module):
    def forward(self, points, centres):
        return poptorch.nearest(points, centres)


class FarthestStart(nn.Module):
    """The first centres are points far from one another."""

    def forward(self, points):
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


def reference(points, centres, iterations):
    for _ in range(iterations):
        nearest = ((points[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        centres = np.stack([points[nearest == k].mean(0) for k in range(CLUSTERS)])
    return centres


def main():
    torch.manual_seed(0)
    truth = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]])
    points = truth[torch.arange(POINTS) % CLUSTERS] + 0.5 * torch.randn(POINTS, DIM)

    start = poptorch.inferenceModel(FarthestStart())(points)
    assert start.shape == (CLUSTERS,)
    centres = points[start.long()]

    lloyd = Lloyd(centres.clone())
    opts = poptorch.Options().updatableNamedBuffers(["centres"])
    step = poptorch.inferenceModel(lloyd, opts)
    inertia = [step(points)[0].item() for _ in range(6)]
    step.copyWeightsToHost()
    print("inertia", [round(value, 2) for value in inertia])
    expected = reference(points.numpy(), centres.numpy(), 6)
    np.testing.assert_allclose(lloyd.centres.numpy(), expected, rtol=1e-4, atol=1e-4)

    labels = poptorch.inferenceModel(Assign())(points, lloyd.centres)
    sizes = torch.bincount(labels.long(), minlength=CLUSTERS)
    print("cluster sizes", sizes.tolist())
    assert int(sizes.sum()) == POINTS
    assert all(later <= earlier + 1e-3 for earlier, later in itertools.pairwise(inertia))
    assert sizes.min() > 40


if __name__ == "__main__":
    main()
