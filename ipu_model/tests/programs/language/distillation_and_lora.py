"""Distil a teacher into a student, then adapt the student with low-rank updates on frozen weights and merge them."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

import poptorch


def make_network(width, depth):
    layers = [nn.Embedding(30, width), nn.Flatten(1), nn.Linear(6 * width, width)]
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class Supervised(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, tokens, labels):
        logits = self.network(tokens)
        return logits, F.cross_entropy(logits, labels)


class Distillation(nn.Module):
    def __init__(self, teacher, student, temperature=2.0, alpha=0.7):
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False), student
        self.temperature, self.alpha = temperature, alpha
        self.features = {}
        self.student[2].register_forward_hook(lambda module, args, out: self.features.update(student=out))

    def forward(self, tokens, labels):
        with torch.no_grad():
            target = F.softmax(self.teacher(tokens) / self.temperature, dim=-1)
        logits = self.student(tokens)
        soft = F.kl_div(F.log_softmax(logits / self.temperature, -1), target, reduction="batchmean")
        hard = F.cross_entropy(logits, labels)
        penalty = self.features.pop("student").pow(2).mean()
        loss = self.alpha * self.temperature**2 * soft + (1 - self.alpha) * hard + 1e-4 * penalty
        return logits, poptorch.identity_loss(loss, reduction="none")


class LoRALinear(nn.Module):
    def __init__(self, linear, rank=4, alpha=8):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.linear(x) + F.linear(F.linear(x, self.A), self.B) * self.scaling

    def merge(self):
        merged = copy.deepcopy(self.linear)
        merged.weight.data += self.scaling * self.B.detach() @ self.A.detach()
        return merged


def task(n, shift=0):
    tokens = torch.randint(0, 30, (n, 6))
    return tokens, ((tokens[:, 0] + shift) // 8) % 4


def fit(model, parameters, data, steps, lr=5e-3):
    executor = poptorch.trainingModel(
        model, poptorch.Options().deviceIterations(2), poptorch.optim.Adam(parameters, lr=lr)
    )
    for _ in range(steps):
        _, loss = executor(*data())
    executor.destroy()
    return loss.item()


def accuracy(network, data):
    executor = poptorch.inferenceModel(network.eval())
    tokens, labels = data()
    right = (executor(tokens).argmax(1) == labels).float().mean().item()
    executor.destroy()
    return right


def main():
    torch.manual_seed(0)
    teacher, student = make_network(48, 2), make_network(16, 1)
    fit(Supervised(teacher), teacher.parameters(), lambda: task(64), 40)
    taught = accuracy(teacher, lambda: task(256))
    frozen = copy.deepcopy(teacher.state_dict())

    fit(Distillation(teacher, student.train()), student.parameters(), lambda: task(64), 100, lr=1e-2)
    assert all(torch.equal(value, frozen[name]) for name, value in teacher.state_dict().items())
    learnt = accuracy(student, lambda: task(256))
    print(f"teacher {taught:.2f}, student {learnt:.2f}")
    assert taught > 0.9 and learnt > 0.75

    adapted = copy.deepcopy(student).requires_grad_(False).train()
    for index, layer in enumerate(adapted):
        if isinstance(layer, nn.Linear):
            adapted[index] = LoRALinear(layer)
    trainable = [p for p in adapted.parameters() if p.requires_grad]
    before = {name: value.clone() for name, value in student.state_dict().items()}
    loss = fit(Supervised(adapted), trainable, lambda: task(64, shift=4), 100, lr=2e-2)
    merged = nn.Sequential(*(layer.merge() if isinstance(layer, LoRALinear) else layer for layer in adapted))
    tokens, _ = task(32)
    torch.testing.assert_close(merged.eval()(tokens), adapted.eval()(tokens), rtol=1e-4, atol=1e-4)
    assert torch.equal(adapted[2].linear.weight, before["2.weight"])
    print(f"adapted: loss {loss:.3f}, accuracy {accuracy(merged, lambda: task(256, shift=4)):.2f}")
    assert loss < 1.0


if __name__ == "__main__":
    main()
