"""Self-distillation (DINO): the student trains, the teacher is a second executor fed with a moving average."""

import copy
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


class PatchEmbed(nn.Module):
    def __init__(self, size, patch, dim):
        super().__init__()
        self.num_patches = (size // patch) ** 2
        self.proj = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=True), nn.Linear(dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(batch, tokens, dim))


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim)
        self.norm2, self.mlp = (
            nn.LayerNorm(dim),
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViTWithHead(nn.Module):
    def __init__(self, size=16, patch=4, dim=32, depth=2, prototypes=24):
        super().__init__()
        self.embed = PatchEmbed(size, patch, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, self.embed.num_patches + 1, dim))
        self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.utils.weight_norm(nn.Linear(dim, prototypes, bias=False))
        self.head.weight_g.data.fill_(1)
        self.head.weight_g.requires_grad = False

    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        x = F.normalize(self.norm(x[:, 0]), dim=-1)
        return self.head(x)


class Student(nn.Module):
    def __init__(self, network, temperature):
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, view, teacher_probabilities):
        log_probs = F.log_softmax(self.network(view) / self.temperature, dim=-1)
        loss = torch.sum(-teacher_probabilities * log_probs, dim=-1).mean()
        return poptorch.identity_loss(loss, reduction="none")


class Teacher(nn.Module):
    """Centres and sharpens; the centre is a buffer that the device updates at each call."""

    def __init__(self, network, temperature, momentum=0.9):
        super().__init__()
        self.network, self.temperature, self.momentum = network, temperature, momentum
        self.register_buffer("centre", torch.zeros(1, network.head.out_features))

    def forward(self, view):
        logits = self.network(view)
        probabilities = torch.softmax((logits - self.centre) / self.temperature, dim=-1)
        self.centre.copy_(self.centre * self.momentum + logits.mean(dim=0, keepdim=True) * (1 - self.momentum))
        return probabilities


def views(generator, batch):
    base = torch.from_numpy(generator.standard_normal((batch, 3, 16, 16))).float()
    return base + 0.1 * torch.randn_like(base), torch.flip(base, dims=(3,))


def cosine_schedule(base, final, steps):
    return final - (final - base) * (np.cos(np.pi * np.arange(steps) / steps) + 1) / 2


def main():
    args = SimpleNamespace(steps=20, batch_size=8, momentum_teacher=0.9)
    torch.manual_seed(0)
    generator = np.random.default_rng(0)

    network = ViTWithHead()
    teacher_network = ViTWithHead()
    teacher_network.load_state_dict(copy.deepcopy(network.state_dict()))
    for parameter in teacher_network.parameters():
        parameter.requires_grad = False

    student, teacher = Student(network, 0.1).train(), Teacher(teacher_network, 0.05).eval()
    optimizer = poptorch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.04)
    student_model = poptorch.trainingModel(student, poptorch.Options(), optimizer)
    teacher_model = poptorch.inferenceModel(teacher, poptorch.Options().updatableNamedBuffers(["centre"]))
    momentum = cosine_schedule(args.momentum_teacher, 1.0, args.steps)
    losses = []
    for step in range(args.steps):
        view1, view2 = views(generator, args.batch_size)
        targets = teacher_model(view1)
        torch.testing.assert_close(targets.sum(-1), torch.ones(args.batch_size), rtol=1e-3, atol=1e-3)
        losses.append(student_model(view2, targets).item())
        student_model.copyWeightsToHost()
        teacher_model.copyWeightsToHost()  # the centre, before all its weights are written again
        with torch.no_grad():
            for own, other in zip(network.parameters(), teacher_network.parameters()):
                other.mul_(momentum[step]).add_((1 - momentum[step]) * own.detach())
        teacher_model.copyWeightsToDevice()
        print(f"step {step}: loss {losses[-1]:.4f}, momentum {momentum[step]:.3f}")
    assert all(np.isfinite(losses))
    assert min(losses) < losses[0]
    assert float(teacher.centre.abs().sum()) > 0


if __name__ == "__main__":
    main()
