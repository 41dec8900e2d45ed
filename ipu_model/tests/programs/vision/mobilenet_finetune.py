"""Fine-tune the last layers of MobileNet V2 with an exponential moving average of the weights on the host."""

import copy
import logging

import torch
import torch.nn as nn
from torchvision.models import mobilenet_v2

import poptorch

logging.basicConfig(level="INFO", format="[%(asctime)s] %(message)s")
logger = logging.getLogger("finetune")

IMAGE_SIZE, NUM_CLASSES, BATCH, DEVICE_ITERATIONS = 32, 5, 8, 2


class MobileNetWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = mobilenet_v2(weights=None, width_mult=0.35)
        self.backbone.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(self.backbone.last_channel, NUM_CLASSES))
        for parameter in self.backbone.features[:-2].parameters():
            parameter.requires_grad = False
        self.loss = nn.CrossEntropyLoss()

    def train(self, mode=True):
        super().train(mode)
        self.backbone.features[:-2].eval()
        return self

    def forward(self, images, labels=None):
        logits = self.backbone(images)
        if self.training:
            return logits, self.loss(logits, labels)
        return logits


class ModelEMA:
    """Keep a moving average of the weights; the copy is made on the host between steps."""

    def __init__(self, model, decay):
        self.decay = decay
        self.averaged = copy.deepcopy(model).eval()
        for parameter in self.averaged.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        own = self.averaged.state_dict()
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                own[name].mul_(self.decay).add_(value, alpha=1 - self.decay)
            else:
                own[name].copy_(value)


def make_batch(generator, count):
    labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    images += torch.linspace(-1, 1, NUM_CLASSES)[labels].view(-1, 1, 1, 1)
    return images, labels


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = MobileNetWithLoss()
    ema = ModelEMA(model, decay=0.8)
    model.train()

    opts = poptorch.Options()
    opts.deviceIterations(DEVICE_ITERATIONS)
    opts.Precision.runningStatisticsAlwaysFloat(True)
    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = poptorch.optim.AdamW(trainable, lr=3e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    frozen_before = model.backbone.features[0][0].weight.detach().clone()

    losses = []
    for step in range(12):
        images, labels = make_batch(generator, BATCH * DEVICE_ITERATIONS)
        _, loss = training_model(images, labels)
        losses.append(loss.item())
        scheduler.step()
        training_model.setOptimizer(optimizer)
        training_model.copyWeightsToHost()
        ema.update(model)
        logger.info("step %d loss %.3f lr %.5f", step, losses[-1], scheduler.get_last_lr()[0])

    assert torch.equal(model.backbone.features[0][0].weight.detach(), frozen_before)
    training_model.detachFromDevice()

    validation = poptorch.inferenceModel(ema.averaged, poptorch.Options())
    images, labels = make_batch(generator, BATCH)
    logits = validation(images)
    torch.testing.assert_close(logits, ema.averaged(images), rtol=1e-3, atol=1e-3)
    logger.info("accuracy of the averaged weights: %.2f", (logits.argmax(1) == labels).float().mean().item())
    assert sum(losses[-3:]) / 3 < losses[0]


if __name__ == "__main__":
    main()
