"""Fine-tune the last layers of MobileNet V2 with an exponential moving average of the weights on the host."""

import copy

import torch
from program_kit import inferred
from torch import nn
from torchvision.models import mobilenet_v2

import poptorch

CLASSES, BATCH, DEVICE_ITERATIONS = 5, 8, 2


class MobileNetWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = mobilenet_v2(weights=None, width_mult=0.35)
        self.backbone.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(self.backbone.last_channel, CLASSES))
        self.backbone.features[:-2].requires_grad_(False)
        self.loss = nn.CrossEntropyLoss()

    def train(self, mode=True):
        super().train(mode)
        self.backbone.features[:-2].eval()
        return self

    def forward(self, images, labels=None):
        logits = self.backbone(images)
        return (logits, self.loss(logits, labels)) if self.training else logits


@torch.no_grad()
def update_average(averaged, model, decay=0.8):
    own = averaged.state_dict()
    for name, value in model.state_dict().items():
        if value.dtype.is_floating_point:
            own[name].mul_(decay).add_(value, alpha=1 - decay)
        else:
            own[name].copy_(value)


def make_batch(count):
    labels = torch.randint(CLASSES, (count,))
    return 0.3 * torch.randn(count, 3, 32, 32) + torch.linspace(-1, 1, CLASSES)[labels].view(-1, 1, 1, 1), labels


torch.manual_seed(1)
model = MobileNetWithLoss()
averaged = copy.deepcopy(model).eval().requires_grad_(False)
model.train()
opts = poptorch.Options().deviceIterations(DEVICE_ITERATIONS)
opts.Precision.runningStatisticsAlwaysFloat(True)
trainable = filter(lambda p: p.requires_grad, model.parameters())
optimizer = poptorch.optim.AdamW(trainable, lr=3e-3, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
frozen_before = model.backbone.features[0][0].weight.detach().clone()
losses = []
for _ in range(12):
    losses.append(training_model(*make_batch(BATCH * DEVICE_ITERATIONS))[1].item())
    scheduler.step()
    training_model.setOptimizer(optimizer)
    training_model.copyWeightsToHost()
    update_average(averaged, model)
assert sum(losses[-3:]) / 3 < losses[0]
assert torch.equal(model.backbone.features[0][0].weight.detach(), frozen_before)
training_model.detachFromDevice()
inferred(averaged, make_batch(BATCH)[0], options=poptorch.Options(), tolerance=1e-3)
