"""PPO on balancing poles simulated inline: rollouts with an inference executor, updates with a training executor."""

import torch
from program_kit import Over
from torch import nn
from torch.distributions import Categorical

import poptorch

ENVIRONMENTS, HORIZON, ITERATIONS, CLIP = 8, 32, 8, 0.2


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(2, 32), nn.Linear(32, 2), nn.Linear(32, 1)
        nn.init.orthogonal_(self.actor.weight, gain=0.01)

    def forward(self, state):
        h = torch.tanh(self.body(state))
        return self.actor(h), self.critic(h).squeeze(-1)


class PPOLoss(Over):
    def forward(self, states, actions, old_log_probs, returns, advantages):
        logits, values = self.network(states)
        log_probs = torch.log_softmax(logits, dim=-1)
        ratio = torch.exp(torch.gather(log_probs, 1, actions[:, None])[:, 0] - old_log_probs)
        surrogate = torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)
        entropy = -(log_probs * log_probs.exp()).sum(dim=-1).mean()
        loss = -surrogate.mean() + 0.5 * (values - returns).pow(2).mean() - 0.01 * entropy
        return poptorch.identity_loss(loss, reduction="none"), entropy


def move(state, action):
    angle, speed = state.unbind(1)
    speed = speed + 0.1 * (3 * torch.sin(angle) + 4 * action - 2)
    return torch.stack([angle + 0.1 * speed, speed], dim=1)


torch.manual_seed(0)
network = ActorCritic()
policy = poptorch.inferenceModel(network)
optimizer = poptorch.optim.Adam(network.parameters(), lr=1e-2, eps=1e-5)
update = poptorch.trainingModel(PPOLoss(network), poptorch.Options().deviceIterations(4), optimizer)
state, history = 0.1 * torch.randn(ENVIRONMENTS, 2), []
for _ in range(ITERATIONS):
    steps, returns = [], [torch.zeros(ENVIRONMENTS)]
    for _ in range(HORIZON):
        logits, value = policy(state)
        distribution = Categorical(logits=logits)
        action = distribution.sample()
        moved = move(state, action)
        fallen = moved[:, 0].abs() > 0.6
        steps.append((state, action, distribution.log_prob(action), value, fallen))
        state = torch.where(fallen[:, None], 0.1 * torch.randn(ENVIRONMENTS, 2), moved)
    for *_, fallen in reversed(steps):
        returns.insert(0, torch.where(fallen, 0.0, 1 + 0.95 * returns[0]))
    states, actions, log_probs, values, falls = (torch.cat(column) for column in zip(*steps))
    advantages = torch.cat(returns[:-1]) / 10 - values
    data = states, actions, log_probs, advantages + values, advantages / (advantages.std() + 1e-8)
    for _ in range(4):
        order = torch.randperm(ENVIRONMENTS * HORIZON)
        update(*(part[order] for part in data))
    update.copyWeightsToHost()
    policy.copyWeightsToDevice()
    history.append(falls.float().mean().item())
assert min(history[-3:]) < 0.7 * history[0], history
