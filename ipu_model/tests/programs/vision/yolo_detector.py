"""A one-anchor-set YOLO detector: CIoU loss on the IPU, decoding and non-maximum suppression on the host."""

import math

import torch
import torch.nn as nn
from program_kit import Items, stacked, train

import poptorch

CONFIG = {
    "model": {"image_size": 32, "channels": 16, "classes": 2, "anchors": [[6, 6], [12, 12]], "stride": 8},
    "training": {
        "micro_batch": 4,
        "gradient_accumulation": 2,
        "steps": 30,
        "lr": 0.005,
        "weights": {"box": 1.0, "obj": 2.0, "cls": 0.5},
    },
    "inference": {"confidence": 0.3, "iou": 0.45, "max_detections": 4},
}


class ConvMish(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.Mish()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class CSPBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.left, self.right, self.join = ConvMish(half, half), nn.Identity(), ConvMish(channels, channels)

    def forward(self, x):
        left, right = torch.chunk(x, 2, dim=1)
        return self.join(torch.cat([self.left(left) + left, self.right(right)], dim=1))


class Detect(nn.Module):
    """The head: gives (batch, anchors, rows, columns, 5 + classes)."""

    def __init__(self, config, channels):
        super().__init__()
        self.outputs = 5 + config["classes"]
        self.stride = config["stride"]
        anchors = torch.tensor(config["anchors"], dtype=torch.float32)
        self.register_buffer("anchors", anchors.view(1, -1, 1, 1, 2))
        self.conv = nn.Conv2d(channels, self.outputs * len(anchors), 1)
        cells = config["image_size"] // config["stride"]
        rows, columns = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        self.register_buffer("grid", torch.stack([columns, rows], -1).view(1, 1, cells, cells, 2).float())

    def forward(self, x):
        batch, _, rows, columns = x.shape
        x = self.conv(x).view(batch, -1, self.outputs, rows, columns).permute(0, 1, 3, 4, 2).contiguous()
        xy = (torch.sigmoid(x[..., 0:2]) * 2 - 0.5 + self.grid) * self.stride
        wh = (torch.sigmoid(x[..., 2:4]) * 2) ** 2 * self.anchors
        return torch.cat([xy, wh, x[..., 4:]], dim=-1)


def complete_iou(box, target, eps=1e-7):
    corner1, corner2 = box[..., :2] - box[..., 2:4] / 2, box[..., :2] + box[..., 2:4] / 2
    other1, other2 = target[..., :2] - target[..., 2:4] / 2, target[..., :2] + target[..., 2:4] / 2
    overlap = (torch.min(corner2, other2) - torch.max(corner1, other1)).clamp(min=0).prod(-1)
    union = box[..., 2:4].prod(-1) + target[..., 2:4].prod(-1) - overlap + eps
    iou = overlap / union
    diagonal = (torch.max(corner2, other2) - torch.min(corner1, other1)).pow(2).sum(-1) + eps
    distance = (box[..., :2] - target[..., :2]).pow(2).sum(-1)
    shape = (
        4
        / math.pi**2
        * (torch.atan(target[..., 2] / (target[..., 3] + eps)) - torch.atan(box[..., 2] / (box[..., 3] + eps))).pow(2)
    )
    alpha = (shape / (1 + eps - iou + shape)).detach()
    return iou - distance / diagonal - alpha * shape


class Yolo(nn.Module):
    def __init__(self, config, weights):
        super().__init__()
        channels = config["channels"]
        self.backbone = nn.Sequential(
            ConvMish(3, channels, 2),
            CSPBlock(channels),
            ConvMish(channels, channels, 2),
            CSPBlock(channels),
            ConvMish(channels, channels, 2),
        )
        self.detect = Detect(config, channels)
        self.weights = weights

    def forward(self, images, targets=None):
        features = poptorch.recomputationCheckpoint(self.backbone(images))
        predictions = self.detect(features)
        if targets is None:
            return predictions
        assigned = targets[..., 4]
        count = assigned.sum().clamp(min=1)
        ciou = complete_iou(predictions, targets)
        box = ((1 - ciou) * assigned).sum() / count
        objectness = nn.functional.binary_cross_entropy_with_logits(
            predictions[..., 4], assigned * ciou.detach().clamp(min=0)
        )
        cls = nn.functional.binary_cross_entropy_with_logits(predictions[..., 5:], targets[..., 5:], reduction="none")
        cls = (cls.mean(-1) * assigned).sum() / count
        total = self.weights["box"] * box + self.weights["obj"] * objectness + self.weights["cls"] * cls
        return torch.stack([box, objectness, cls]), poptorch.identity_loss(total, reduction="none")


def rectangle(index, generator):
    config = CONFIG["model"]
    size, stride = config["image_size"], config["stride"]
    image = 0.1 * torch.randn(3, size, size, generator=generator)
    label = int(torch.randint(2, (), generator=generator))
    side = config["anchors"][label][0]
    x, y = (torch.rand(2, generator=generator) * (size - side) + side / 2).tolist()
    image[label, int(y - side / 2) : int(y + side / 2), int(x - side / 2) : int(x + side / 2)] += 1
    target = torch.zeros(2, size // stride, size // stride, 7)
    cell = target[label, int(y) // stride, int(x) // stride]
    cell[:5] = torch.tensor([x, y, side, side, 1.0])
    cell[5 + label] = 1
    return image, target


def nms(prediction, confidence, iou_threshold, max_detections):
    rows = prediction.reshape(-1, prediction.shape[-1])
    scores, labels = (rows[:, 4:5].sigmoid() * rows[:, 5:].sigmoid()).max(dim=1)
    kept, order = [], scores.argsort(descending=True)
    for i in order.tolist():
        if scores[i] < confidence or len(kept) == max_detections:
            break
        if all(complete_iou(rows[i], rows[j]) < iou_threshold or labels[i] != labels[j] for j in kept):
            kept.append(i)
    return rows[kept, :4], scores[kept], labels[kept]


def main():
    torch.manual_seed(0)
    training = CONFIG["training"]
    model = Yolo(CONFIG["model"], training["weights"])
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(training["gradient_accumulation"])
    opts.Precision.enableFloatingPointExceptions(True)
    data = Items(training["steps"] * training["micro_batch"] * training["gradient_accumulation"], rectangle)
    loader = poptorch.DataLoader(opts, data, batch_size=training["micro_batch"], shuffle=True)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=training["lr"], betas=(0.937, 0.999))
    training_model = poptorch.trainingModel(model.train(), opts, optimizer)
    history = train(training_model, loader)
    training_model.detachFromDevice()

    inference_model = poptorch.inferenceModel(model.eval())
    images, _ = stacked(Items(4, rectangle)[i] for i in range(4))
    predictions = inference_model(images)
    assert predictions.shape == (4, 2, 4, 4, 7)
    found = [nms(p, *CONFIG["inference"].values()) for p in predictions]
    print("detections for each image:", [len(boxes) for boxes, _, _ in found])
    assert all(len(boxes) <= 4 for boxes, _, _ in found)
    assert history[-1] < 0.75 * history[0], (history[0], history[-1])


if __name__ == "__main__":
    main()
