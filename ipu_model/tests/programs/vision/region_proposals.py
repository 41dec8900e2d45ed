"""The first stage of Faster R-CNN: anchors, balanced sampling of them on the host, and torchvision's NMS."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.ops import box_iou, nms

import poptorch

SIZE, STRIDE, SCALES = 48, 8, (10, 20)


def make_anchors():
    centres = torch.arange(STRIDE / 2, SIZE, STRIDE)
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    boxes = [torch.stack([x - s / 2, y - s / 2, x + s / 2, y + s / 2], dim=-1) for s in SCALES]
    return torch.stack(boxes, dim=2).reshape(-1, 4)


def encode(boxes, anchors):
    size, anchor_size = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    centre, anchor_centre = (boxes[:, 2:] + boxes[:, :2]) / 2, (anchors[:, 2:] + anchors[:, :2]) / 2
    return torch.cat([(centre - anchor_centre) / anchor_size, torch.log(size / anchor_size)], dim=1)


def decode(deltas, anchors):
    anchor_size, anchor_centre = anchors[:, 2:] - anchors[:, :2], (anchors[:, 2:] + anchors[:, :2]) / 2
    centre = deltas[..., :2] * anchor_size + anchor_centre
    size = torch.exp(deltas[..., 2:].clamp(max=2.0)) * anchor_size
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


class SceneDataset(torch.utils.data.Dataset):
    """Two bright squares for each picture; targets are sampled as 1, 0 or -1 (ignored)."""

    def __init__(self, length):
        self.length = length
        self.anchors = make_anchors()

    def __len__(self):
        return self.length

    def scene(self, index):
        generator = torch.Generator().manual_seed(index)
        image = 0.05 * torch.randn(1, SIZE, SIZE, generator=generator)
        boxes = []
        for side in SCALES:
            left, top = torch.randint(0, SIZE - side, (2,), generator=generator).tolist()
            image[0, top : top + side, left : left + side] += 1
            boxes.append([left, top, left + side, top + side])
        return image, torch.tensor(boxes, dtype=torch.float32)

    def __getitem__(self, index):
        image, boxes = self.scene(index)
        iou, matched = box_iou(self.anchors, boxes).max(dim=1)
        labels = torch.full((len(self.anchors),), -1, dtype=torch.int32)
        labels[iou < 0.2] = 0
        labels[iou > 0.45] = 1
        return image, labels, encode(boxes[matched], self.anchors)


class RegionProposalNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 1, 1),
            nn.ReLU(),
        )
        self.objectness = nn.Conv2d(32, len(SCALES), 1)
        self.deltas = nn.Conv2d(32, 4 * len(SCALES), 1)
        self.register_buffer("anchors", make_anchors())

    def forward(self, images, labels=None, targets=None, proposals=8):
        features = self.backbone(images)
        batch = images.shape[0]
        scores = self.objectness(features).permute(0, 2, 3, 1).reshape(batch, -1)
        deltas = self.deltas(features).view(batch, len(SCALES), 4, *features.shape[-2:])
        deltas = deltas.permute(0, 3, 4, 1, 2).reshape(batch, -1, 4)
        if labels is None:
            values, indices = torch.topk(scores, proposals, dim=1)
            boxes = decode(deltas, self.anchors).clamp(0, SIZE)
            picked = torch.gather(boxes, 1, indices.unsqueeze(-1).expand(-1, -1, 4))
            return picked, torch.sigmoid(values)
        valid, positive = (labels >= 0).float(), (labels == 1).float()
        bce = F.binary_cross_entropy_with_logits(scores, positive, weight=valid, reduction="sum") / valid.sum()
        smooth = F.smooth_l1_loss(deltas, targets, reduction="none", beta=1 / 9).sum(-1)
        box = (smooth * positive).sum() / torch.clamp(positive.sum(), min=1.0)
        return poptorch.identity_loss(bce + box, reduction="none")


def main():
    torch.manual_seed(2)
    model = RegionProposalNetwork()
    opts = poptorch.Options()
    opts.deviceIterations(4)
    opts.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(opts, SceneDataset(256), batch_size=4, mode=poptorch.DataLoaderMode.Async)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=2e-3)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for epoch in range(4):
        epoch_losses = [training_model(*batch) for batch in loader]
        assert all(loss.shape == (4,) for loss in epoch_losses)
        losses.append(torch.cat(epoch_losses).mean().item())
        print(f"epoch {epoch}: {losses[-1]:.3f}")
    loader.terminate()
    training_model.destroy()

    model.eval()
    proposer = poptorch.inferenceModel(model)
    test = SceneDataset(1000)
    images, truths = zip(*(test.scene(900 + i) for i in range(4)))
    boxes, scores = proposer(torch.stack(images))
    recalls = []
    for found, score, truth in zip(boxes, scores, truths):
        kept = found[nms(found, score, 0.5)]
        recalls.append((box_iou(truth, kept).max(dim=1).values > 0.4).float().mean().item())
    print("recall", recalls)
    assert boxes.shape == (4, 8, 4)
    assert losses[-1] < 0.6 * losses[0]
    assert sum(recalls) / 4 > 0.4


if __name__ == "__main__":
    main()
