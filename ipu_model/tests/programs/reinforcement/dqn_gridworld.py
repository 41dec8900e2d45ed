"""Double DQN on a grid: replay memory and environment on the host, acting and learning in two executors."""

import collections
import random
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

import poptorch

Transition = collections.namedtuple("Transition", "state action reward next_state done")


class GridWorld:
    """Walk from a random cell to the goal in the corner; each step costs a little."""

    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, size=4, limit=16):
        self.size, self.limit = size, limit

    def observation(self):
        grid = np.zeros((self.size, self.size), dtype=np.float32)
        grid[tuple(self.position)] = 1.0
        return torch.from_numpy(grid.ravel())

    def reset(self):
        self.position, self.steps = np.array([random.randrange(self.size) for _ in range(2)]), 0
        return self.observation() if tuple(self.position) != self.goal else self.reset()

    @property
    def goal(self):
        return (self.size - 1, self.size - 1)

    def step(self, action):
        self.position = np.clip(self.position + self.MOVES[action], 0, self.size - 1)
        self.steps += 1
        reached = tuple(self.position) == self.goal
        return self.observation(), 1.0 if reached else -0.05, reached, reached or self.steps >= self.limit


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = collections.deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, count):
        return Transition(*zip(*random.sample(self.memory, count)))


class QNetwork(nn.Module):
    def __init__(self, observations, actions, hidden=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(observations, hidden), nn.ReLU())
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, x):
        h = self.trunk(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=-1, keepdim=True)


class Learner(nn.Module):
    def __init__(self, online):
        super().__init__()
        self.online, self.huber = online, nn.SmoothL1Loss()

    def forward(self, states, actions, targets):
        q = self.online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        return self.huber(q, targets)


def main():
    args = SimpleNamespace(episodes=70, batch_size=32, gamma=0.95, target_update=20)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

    env, memory = GridWorld(), ReplayMemory(2000)
    policy, target = QNetwork(16, 4), QNetwork(16, 4)
    acting, target_copy = QNetwork(16, 4).eval(), target.eval()
    actor = poptorch.inferenceModel(acting)
    target_net = poptorch.inferenceModel(target_copy)
    learner = poptorch.trainingModel(
        Learner(policy), poptorch.Options(), poptorch.optim.Adam(policy.parameters(), lr=5e-3)
    )
    returns, updates = [], 0
    for episode in range(args.episodes):
        state, done, total = env.reset(), False, 0.0
        epsilon = max(0.05, 0.9 - episode / 40)
        while not done:
            if random.random() < epsilon:
                action = random.randrange(4)
            else:
                action = actor(state.unsqueeze(0)).argmax(dim=1).item()
            next_state, reward, terminal, done = env.step(action)
            memory.push(state, action, reward, next_state, float(terminal))
            state, total = next_state, total + reward
            if len(memory.memory) < args.batch_size or env.steps % 2:
                continue
            batch = memory.sample(args.batch_size)
            next_q = target_net(torch.stack(batch.next_state)).max(dim=1).values
            targets = torch.tensor(batch.reward) + args.gamma * next_q * (1 - torch.tensor(batch.done))
            learner(torch.stack(batch.state), torch.tensor(batch.action), targets)
            updates += 1
            if updates % args.target_update == 0:
                learner.copyWeightsToHost()
                for network, executor in ((target, target_net), (acting, actor)):
                    network.load_state_dict(policy.state_dict())
                    if executor.isCompiled():
                        executor.copyWeightsToDevice()
        returns.append(total)
    early, late = np.mean(returns[:15]), np.mean(returns[-15:])
    print(f"{updates} updates, mean return {early:.2f} -> {late:.2f}")
    assert updates > 100
    assert late > early + 0.3
    assert late > 0.4


if __name__ == "__main__":
    main()
