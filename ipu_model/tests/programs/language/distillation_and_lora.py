"""Distil a teacher into a student, then adapt the student with low-rank updates on frozen weights and merge them."""

import copy
import math

import torch
from program_kit import Over, WithLoss, accuracy, check_close, train
from torch import nn
from torch.nn import functional as F

import poptorch


def make_network(width, depth):
    layers = [nn.Embedding(30, width), nn.Flatten(1), nn.Linear(6 * width, width)]
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class Distillation(Over):
    def __init__(self, teacher, student):
        super().__init__(student)
        self.teacher, self.features = teacher.requires_grad_(False), {}
        student[2].register_forward_hook(lambda module, args, out: self.features.update(student=out))

    def forward(self, tokens, labels):
        with torch.no_grad():
            target = F.softmax(self.teacher(tokens) / 2, dim=-1)
        logits = self.network(tokens)
        soft = F.kl_div(F.log_softmax(logits / 2, -1), target, reduction="batchmean")
        loss = 2.8 * soft + 0.3 * F.cross_entropy(logits, labels) + 1e-4 * self.features.pop("student").pow(2).mean()
        return logits, poptorch.identity_loss(loss, reduction="none")


class LoRALinear(Over):
    def __init__(self, linear, rank=4, alpha=8):
        super().__init__(linear.requires_grad_(False))
        self.scaling, self.A = alpha / rank, nn.Parameter(torch.empty(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):
        return self.network(x) + F.linear(F.linear(x, self.A), self.B) * self.scaling

    def merge(self):
        merged = copy.deepcopy(self.network)
        merged.weight.data += self.scaling * self.B.detach() @ self.A.detach()
        return merged


def task(n, shift=0):
    tokens = torch.randint(0, 30, (n, 6))
    return tokens, ((tokens[:, 0] + shift) // 8) % 4


def fit(model, parameters, steps, lr, shift=0):
    optimizer = poptorch.optim.Adam(parameters, lr=lr)
    executor = poptorch.trainingModel(model, poptorch.Options().deviceIterations(2), optimizer)
    losses = train(executor, (task(64, shift) for _ in range(steps)))
    executor.destroy()
    return losses[-1]


def right(network):
    executor, (tokens, labels) = poptorch.inferenceModel(network.eval()), task(256)
    scores = executor(tokens)
    executor.destroy()
    return accuracy(scores, labels)


torch.manual_seed(0)
teacher, student = make_network(48, 2), make_network(16, 1)
fit(WithLoss(teacher, F.cross_entropy), teacher.parameters(), 40, lr=5e-3)
assert right(teacher) > 0.9
frozen = copy.deepcopy(teacher.state_dict())
fit(Distillation(teacher, student.train()), student.parameters(), 100, lr=1e-2)
assert all(torch.equal(value, frozen[name]) for name, value in teacher.state_dict().items())
assert right(student) > 0.75

adapted, before = copy.deepcopy(student).requires_grad_(False).train(), student[2].weight.clone()
for index, layer in enumerate(adapted):
    if isinstance(layer, nn.Linear):
        adapted[index] = LoRALinear(layer)
trainable = [p for p in adapted.parameters() if p.requires_grad]
assert fit(WithLoss(adapted, F.cross_entropy), trainable, 100, lr=2e-2, shift=4) < 1.0
assert torch.equal(adapted[2].network.weight, before)
merged = nn.Sequential(*(layer.merge() if isinstance(layer, LoRALinear) else layer for layer in adapted))
tokens, _ = task(32)
check_close(merged.eval()(tokens), adapted.eval()(tokens))
