"""An ensemble on replicas: each group of replicas keeps weights of its own and sees the same data."""

import torch

import poptorch

REPLICAS, GROUPS = 4, 2


class Member(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Parameter(torch.randn(GROUPS, 6, 16) / 6**0.5)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x, y):
        prediction = self.out(torch.tanh(x @ self.hidden)).squeeze(-1)
        return prediction, torch.nn.functional.mse_loss(prediction, y)


torch.manual_seed(0)
model = Member()
before = model.hidden.detach().clone()
opts = poptorch.Options().replicationFactor(REPLICAS).outputMode(poptorch.OutputMode.All).broadcastBuffers(False)
training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.05))
training.hidden.replicaGrouping(
    poptorch.CommGroupType.Consecutive, REPLICAS // GROUPS, poptorch.VariableRetrievalMode.OnePerGroup
)
losses = []
for _ in range(40):
    x = torch.randn(8, 6)
    # Every replica gets the same samples.
    losses.append(training(x.repeat(REPLICAS, 1), x.sum(1).tanh().repeat(REPLICAS))[1])
    assert losses[-1].shape == (REPLICAS,)
training.copyWeightsToHost()
first, last = losses[0], losses[-1]
# Replicas of a group agree, groups differ.
assert torch.allclose(last[0], last[1]) and torch.allclose(last[2], last[3])
assert not torch.allclose(last[0], last[2])
assert model.hidden.shape == (GROUPS, 6, 16)
assert not torch.equal(model.hidden[0], model.hidden[1])
assert (model.hidden - before).abs().max() > 0
assert last.mean() < 0.5 * first.mean()
