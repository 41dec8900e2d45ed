"""A YOLO detector of one square: complete IoU as loss, a recomputation checkpoint, exceptions for NaN."""

import math

import torch
from program_kit import Items, check_learned, train
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import poptorch

SIZE, STRIDE, CELLS, CHANNELS, EPS = 32, 8, 4, 16, 1e-7


def complete_iou(box, target):
    """Boxes are centres and sizes."""
    corner1, corner2 = box[..., :2] - box[..., 2:4] / 2, box[..., :2] + box[..., 2:4] / 2
    other1, other2 = target[..., :2] - target[..., 2:4] / 2, target[..., :2] + target[..., 2:4] / 2
    overlap = (torch.min(corner2, other2) - torch.max(corner1, other1)).clamp(min=0).prod(-1)
    iou = overlap / (box[..., 2:4].prod(-1) + target[..., 2:4].prod(-1) - overlap + EPS)
    diagonal = (torch.max(corner2, other2) - torch.min(corner1, other1)).pow(2).sum(-1) + EPS
    angle, other = (torch.atan(each[..., 2] / (each[..., 3] + EPS)) for each in (box, target))
    shape = 4 / math.pi**2 * (angle - other).pow(2)
    distance = (box[..., :2] - target[..., :2]).pow(2).sum(-1)
    return iou - distance / diagonal - (shape / (1 + EPS - iou + shape)).detach() * shape


def convolution(inputs):
    norm = nn.BatchNorm2d(CHANNELS, eps=1e-3, momentum=0.03)
    return nn.Sequential(nn.Conv2d(inputs, CHANNELS, 3, 2, 1, bias=False), norm, nn.Mish())


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(convolution(3), convolution(CHANNELS), convolution(CHANNELS))
        self.detect = nn.Conv2d(CHANNELS, 5, 1)
        self.register_buffer("grid", torch.cartesian_prod(*[torch.arange(4.0)] * 2).flip(1).view(CELLS, CELLS, 2))

    def forward(self, images, targets):
        x = self.detect(poptorch.recomputationCheckpoint(self.backbone(images))).permute(0, 2, 3, 1).contiguous()
        xy = (torch.sigmoid(x[..., 0:2]) * 2 - 0.5 + self.grid) * STRIDE
        predicted = torch.cat([xy, (torch.sigmoid(x[..., 2:4]) * 2) ** 2 * STRIDE], dim=-1)
        assigned, ciou = targets[..., 4], complete_iou(predicted, targets)
        box = ((1 - ciou) * assigned).sum() / assigned.sum().clamp(min=1)
        objectness = binary_cross_entropy_with_logits(x[..., 4], assigned * ciou.detach().clamp(min=0))
        return predicted, poptorch.identity_loss(box + 2 * objectness, reduction="none")


def square(index, generator):
    image, target = 0.1 * torch.randn(3, SIZE, SIZE, generator=generator), torch.zeros(CELLS, CELLS, 5)
    x, y = torch.randint(5, SIZE - 5, (2,), generator=generator).tolist()
    image[:, y - 5 : y + 5, x - 5 : x + 5] += 1
    target[y // STRIDE, x // STRIDE] = torch.tensor([x, y, 10.0, 10.0, 1.0])
    return image, target


torch.manual_seed(0)
model = Yolo().train()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
opts.Precision.enableFloatingPointExceptions(True)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.937, 0.999)))
check_learned(train(training, poptorch.DataLoader(opts, Items(320, square), batch_size=4, shuffle=True)), 0.75)
