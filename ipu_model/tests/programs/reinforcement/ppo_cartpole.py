"""PPO on a cart and pole simulated inline: rollouts with an inference executor, updates with a training executor."""

import argparse
import math

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

import poptorch


class CartPoles:
    """A vector of environments with the usual equations of motion."""

    def __init__(self, count, generator):
        self.count, self.generator = count, generator
        self.state, self.steps = generator.uniform(-0.05, 0.05, (count, 4)), np.zeros(count)

    def step(self, action):
        _, velocity, angle, spin = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        sin, cos = np.sin(angle), np.cos(angle)
        common = (force + 0.05 * spin**2 * sin) / 1.1
        angular = (9.8 * sin - cos * common) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        linear = common - 0.05 * angular * cos / 1.1
        self.state = self.state + 0.02 * np.stack([velocity, linear, spin, angular], axis=1)
        self.steps += 1
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 12 * math.pi / 180)
        ended = fallen | (self.steps >= 200)
        lengths = self.steps[ended].tolist()
        self.state[ended] = self.generator.uniform(-0.05, 0.05, (int(ended.sum()), 4))
        self.steps[ended] = 0
        return torch.tensor(self.state, dtype=torch.float32), torch.ones(self.count), torch.tensor(ended), lengths


class ActorCritic(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor, self.critic = nn.Linear(hidden, 2), nn.Linear(hidden, 1)
        nn.init.orthogonal_(self.actor.weight, gain=0.01)

    def forward(self, state):
        h = self.body(state)
        return self.actor(h), self.critic(h).squeeze(-1)


class PPOLoss(nn.Module):
    def __init__(self, network, clip=0.2, value_weight=0.5, entropy_weight=0.01):
        super().__init__()
        self.network, self.clip = network, clip
        self.value_weight, self.entropy_weight = value_weight, entropy_weight

    def forward(self, states, actions, old_log_probs, advantages, returns):
        logits, values = self.network(states)
        log_probs = torch.log_softmax(logits, dim=-1)
        chosen = torch.gather(log_probs, 1, actions[:, None])[:, 0]
        ratio = torch.exp(chosen - old_log_probs)
        surrogate = torch.min(ratio * advantages, torch.clamp(ratio, 1 - self.clip, 1 + self.clip) * advantages)
        value_loss = (values - returns).pow(2).mean()
        entropy = -(log_probs * log_probs.exp()).sum(dim=-1).mean()
        loss = -surrogate.mean() + self.value_weight * value_loss - self.entropy_weight * entropy
        clipped = (torch.abs(ratio - 1.0) > self.clip).float().mean()
        return poptorch.identity_loss(loss, reduction="none"), value_loss, entropy, clipped


def rollout(env, policy, state, horizon, gamma, lam):
    steps, lengths = [], []
    for _ in range(horizon):
        logits, value = policy(state)
        distribution = Categorical(logits=logits)
        action = distribution.sample()
        next_state, reward, ended, finished = env.step(action.numpy())
        steps.append((state, action, distribution.log_prob(action), value, reward, ended))
        lengths += finished
        state = next_state
    _, last_value = policy(state)
    advantage, advantages = torch.zeros(env.count), []
    for _, _, _, value, reward, ended in reversed(steps):
        alive = 1.0 - ended.float()
        delta = reward + gamma * last_value * alive - value
        advantage = delta + gamma * lam * alive * advantage
        advantages.insert(0, advantage)
        last_value = value
    states, actions, log_probs, values = (torch.cat(column) for column in list(zip(*steps))[:4])
    advantages = torch.cat(advantages)
    return state, (states, actions, log_probs, advantages, advantages + values), lengths


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=18)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--horizon", type=int, default=32)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--ppo-epochs", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    env = CartPoles(args.environments, np.random.default_rng(0))
    network = ActorCritic()
    policy = poptorch.inferenceModel(network)
    samples = args.environments * args.horizon
    opts = poptorch.Options().deviceIterations(samples // args.minibatch)
    optimizer = poptorch.optim.Adam(network.parameters(), lr=5e-3, eps=1e-5)
    update = poptorch.trainingModel(PPOLoss(network), opts, optimizer)
    state = torch.tensor(env.state, dtype=torch.float32)
    history = []
    for iteration in range(args.iterations):
        state, batch, lengths = rollout(env, policy, state, args.horizon, 0.99, 0.95)
        states, actions, log_probs, advantages, returns = batch
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(args.ppo_epochs):
            order = torch.randperm(samples)
            _, value_loss, entropy, clipped = update(
                *(part[order] for part in (states, actions, log_probs, advantages, returns))
            )
        update.copyWeightsToHost()
        policy.copyWeightsToDevice()
        history.append(np.mean(lengths) if lengths else 0.0)
        print(
            f"{iteration}: episodes {len(lengths)} length {history[-1]:.1f} value loss {value_loss.item():.2f} "
            f"entropy {entropy.item():.3f} clipped {clipped.item():.2f}"
        )
    assert history[0] > 5
    assert max(history[-5:]) > 2 * history[0], history


if __name__ == "__main__":
    main()
