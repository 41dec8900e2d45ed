"""Double DQN on a grid: replay memory and environment on the host, acting and learning in two executors."""

import collections
import random

import torch
from program_kit import Over
from torch import nn

import poptorch

EPISODES, BATCH, GAMMA, TARGET_UPDATE, SIZE, LIMIT = 70, 32, 0.95, 20, 4, 16
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
GOAL = (SIZE - 1, SIZE - 1)


def observation(cell):
    return nn.functional.one_hot(torch.tensor(SIZE * cell[0] + cell[1]), SIZE**2).float()


def step(cell, action):
    """Walk to the goal in the corner; each step costs a little."""
    cell = tuple(min(max(x + move, 0), SIZE - 1) for x, move in zip(cell, MOVES[action]))
    return cell, 1.0 if cell == GOAL else -0.05, cell == GOAL


class QNetwork(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SIZE**2, hidden), nn.ReLU())
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, len(MOVES))

    def forward(self, x):
        h = self.trunk(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=-1, keepdim=True)


class Learner(Over):
    def forward(self, states, actions, targets):
        q = self.network(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        return nn.SmoothL1Loss()(q, targets)


random.seed(0)
torch.manual_seed(0)
policy, acting, target = QNetwork(), QNetwork().eval(), QNetwork().eval()
actor, target_net = poptorch.inferenceModel(acting), poptorch.inferenceModel(target)
optimizer = poptorch.optim.Adam(policy.parameters(), lr=5e-3)
learner = poptorch.trainingModel(Learner(policy), poptorch.Options(), optimizer)
memory, returns, updates = collections.deque(maxlen=2000), [], 0
for episode in range(EPISODES):
    cell, total = divmod(random.randrange(SIZE**2 - 1), SIZE), 0.0
    for steps in range(1, LIMIT + 1):
        if random.random() < max(0.05, 0.9 - episode / 40):
            action = random.randrange(len(MOVES))
        else:
            action = actor(observation(cell).unsqueeze(0)).argmax(dim=1).item()
        before = cell
        cell, reward, done = step(cell, action)
        memory.append((observation(before), action, reward, observation(cell), float(done)))
        total += reward
        if len(memory) >= BATCH and steps % 2 == 0:
            states, actions, rewards, next_states, ends = zip(*random.sample(memory, BATCH))
            next_q = target_net(torch.stack(next_states)).max(dim=1).values
            targets = torch.tensor(rewards) + GAMMA * next_q * (1 - torch.tensor(ends))
            learner(torch.stack(states), torch.tensor(actions), targets)
            updates += 1
            if updates % TARGET_UPDATE == 0:
                learner.copyWeightsToHost()
                for network, executor in ((target, target_net), (acting, actor)):
                    network.load_state_dict(policy.state_dict())
                    if executor.isCompiled():
                        executor.copyWeightsToDevice()
        if done:
            break
    returns.append(total)
early, late = sum(returns[:15]) / 15, sum(returns[-15:]) / 15
print(f"{updates} updates, mean return {early:.2f} -> {late:.2f}")
assert updates > 100
assert late > early + 0.3
assert late > 0.4
