"""REINFORCE with a baseline on contextual bandits; actions are sampled on the device by the Gumbel trick."""

import torch
import torch.nn as nn

import poptorch

CONTEXTS, ARMS, BATCH, CALLS = 6, 4, 32, 80


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(CONTEXTS, 32), nn.ReLU(), nn.Linear(32, ARMS))

    def forward(self, context):
        return self.layers(context)


class BanditStep(nn.Module):
    """Sample, look the reward up and form the score-function loss, all in one step on the device."""

    def __init__(self, policy, reward_table):
        super().__init__()
        self.policy = policy
        self.register_buffer("rewards", reward_table)
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


def main():
    torch.manual_seed(0)
    table = torch.rand(CONTEXTS, ARMS)
    table[torch.arange(CONTEXTS), torch.randint(ARMS, (CONTEXTS,))] += 1.0
    step = BanditStep(Policy(), table)
    opts = poptorch.Options().randomSeed(2)
    opts.deviceIterations(5)
    opts.outputMode(poptorch.OutputMode.All)
    opts.updatableNamedBuffers(["rewards"])
    trainer = poptorch.trainingModel(step, opts, poptorch.optim.Adam(step.policy.parameters(), lr=0.01))
    history, pulls = [], torch.zeros(ARMS, dtype=torch.long)
    for _ in range(CALLS):
        context = torch.eye(CONTEXTS)[torch.randint(CONTEXTS, (5 * BATCH,))]
        reward, action, loss = trainer(context)
        history.append(reward.mean().item())
        pulls += torch.bincount(action.long().flatten(), minlength=ARMS)
    best = table.max(dim=1).values.mean().item()
    print(f"mean reward {history[0]:.3f} -> {history[-1]:.3f} (best possible {best:.3f}); pulls {pulls.tolist()}")
    trainer.copyWeightsToHost()
    print(f"baseline on the device: {step.baseline.item():.3f}")

    greedy = poptorch.inferenceModel(step.policy.eval())(torch.eye(CONTEXTS)).argmax(dim=-1)
    assert loss.shape == (5,)
    assert int(pulls.sum()) == CALLS * 5 * BATCH
    assert (greedy == table.argmax(dim=1)).float().mean() >= 5 / 6
    assert abs(step.baseline.item() - history[-1]) < 0.3


if __name__ == "__main__":
    main()
