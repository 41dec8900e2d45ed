"""Self-distillation (DINO): the student trains, the teacher is a second executor fed with a moving average."""

import copy
import math

import torch
from program_kit import Over, TransformerLayer, check_close
from torch import nn
from torch.nn import functional as F

import poptorch

SIZE, PATCH, DIM, PROTOTYPES, STEPS, BATCH = 16, 4, 32, 24, 20, 8


class ViTWithHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, DIM, kernel_size=PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2 + 1, DIM))
        self.layers = nn.Sequential(TransformerLayer(DIM, 2), TransformerLayer(DIM, 2), nn.LayerNorm(DIM))
        self.head = nn.utils.weight_norm(nn.Linear(DIM, PROTOTYPES, bias=False))
        self.head.weight_g.data.fill_(1)
        self.head.weight_g.requires_grad = False

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(F.normalize(self.layers(x)[:, 0], dim=-1))


class Student(Over):
    def forward(self, view, teacher_probabilities):
        log_probs = F.log_softmax(self.network(view) / 0.1, dim=-1)
        loss = torch.sum(-teacher_probabilities * log_probs, dim=-1).mean()
        return poptorch.identity_loss(loss, reduction="none")


class Teacher(Over):
    """Centres and sharpens; the centre is a buffer that the device updates at each call."""

    def __init__(self, network):
        super().__init__(network)
        self.register_buffer("centre", torch.zeros(1, PROTOTYPES))

    def forward(self, view):
        logits = self.network(view)
        probabilities = torch.softmax((logits - self.centre) / 0.05, dim=-1)
        self.centre.copy_(self.centre * 0.9 + logits.mean(dim=0, keepdim=True) * 0.1)
        return probabilities


torch.manual_seed(0)
network = ViTWithHead()
teacher_network = ViTWithHead().requires_grad_(False)
teacher_network.load_state_dict(copy.deepcopy(network.state_dict()))
student, teacher = Student(network).train(), Teacher(teacher_network).eval()
optimizer = poptorch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.04)
student_model = poptorch.trainingModel(student, poptorch.Options(), optimizer)
teacher_model = poptorch.inferenceModel(teacher, poptorch.Options().updatableNamedBuffers(["centre"]))
losses = []
for step in range(STEPS):
    base = torch.randn(BATCH, 3, SIZE, SIZE)
    targets = teacher_model(base + 0.1 * torch.randn_like(base))
    check_close(targets.sum(-1), torch.ones(BATCH), 1e-3)
    losses.append(student_model(torch.flip(base, dims=(3,)), targets).item())
    student_model.copyWeightsToHost()
    teacher_model.copyWeightsToHost()  # the centre, before all its weights are written again
    momentum = 1 - 0.05 * (math.cos(math.pi * step / STEPS) + 1)
    with torch.no_grad():
        for own, other in zip(network.parameters(), teacher_network.parameters()):
            other.mul_(momentum).add_((1 - momentum) * own.detach())
    teacher_model.copyWeightsToDevice()
assert all(map(math.isfinite, losses))
assert min(losses) < losses[0]
assert float(teacher.centre.abs().sum()) > 0
