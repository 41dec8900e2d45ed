"""REINFORCE with a baseline on contextual bandits; actions are sampled on the device by the Gumbel trick."""

import torch
from torch import nn

import poptorch

CONTEXTS, ARMS, BATCH, CALLS = 6, 4, 32, 80


class BanditStep(nn.Module):
    def __init__(self, rewards):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(CONTEXTS, 32), nn.ReLU(), nn.Linear(32, ARMS))
        self.register_buffer("rewards", rewards)
        self.register_buffer("baseline", torch.zeros(1))

    def forward(self, context):
        logits = self.policy(context)
        uniform = torch.rand(logits.shape).clamp(1e-6, 1 - 1e-6)
        action = torch.argmax(logits.detach() - torch.log(-torch.log(uniform)), dim=-1)
        chosen = nn.functional.one_hot(action, ARMS).float()
        reward = ((context @ self.rewards) * chosen).sum(dim=-1)
        log_prob = (torch.log_softmax(logits, dim=-1) * chosen).sum(dim=-1)
        loss = -(log_prob * (reward - self.baseline)).mean()
        self.baseline.copy_(0.9 * self.baseline + 0.1 * reward.detach().mean())
        return reward.mean(), action, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
table = torch.rand(CONTEXTS, ARMS)
table[torch.arange(CONTEXTS), torch.randint(ARMS, (CONTEXTS,))] += 1.0
step = BanditStep(table)
opts = poptorch.Options().randomSeed(2).deviceIterations(5).outputMode(poptorch.OutputMode.All)
opts.updatableNamedBuffers(["rewards"])
trainer = poptorch.trainingModel(step, opts, poptorch.optim.Adam(step.policy.parameters(), lr=0.01))
for _ in range(CALLS):
    reward, action, loss = trainer(torch.eye(CONTEXTS)[torch.randint(CONTEXTS, (5 * BATCH,))])
assert loss.shape == (5,) and action.numel() == 5 * BATCH
trainer.copyWeightsToHost()
assert abs(step.baseline.item() - reward.mean()) < 0.3
greedy = poptorch.inferenceModel(step.policy.eval())(torch.eye(CONTEXTS)).argmax(dim=-1)
assert (greedy == table.argmax(dim=1)).float().mean() >= 5 / 6
