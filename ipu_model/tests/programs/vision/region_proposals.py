"""The first stage of Faster R-CNN: anchors that are matched on the host, and torchvision's suppression of boxes."""

import torch
from program_kit import Items, check_learned, inferred, stacked, train
from torch import nn
from torch.nn import functional as F
from torchvision.ops import box_iou, nms

import poptorch

SIZE, STRIDE, SIDE = 32, 8, 12
CENTRES = torch.cartesian_prod(*[torch.arange(STRIDE / 2, SIZE, STRIDE)] * 2)
ANCHORS = torch.cat([CENTRES - SIDE / 2, CENTRES + SIDE / 2], dim=1)


def scene(index, generator):
    """A bright square, which anchors show it (-1: undecided), and how it lies to each anchor."""
    corner = torch.randint(SIZE - SIDE, (2,), generator=generator)
    image = 0.05 * torch.randn(1, SIZE, SIZE, generator=generator)
    image[0, corner[0] : corner[0] + SIDE, corner[1] : corner[1] + SIDE] += 1
    iou = box_iou(ANCHORS, torch.cat([corner, corner + SIDE])[None].float())[:, 0]
    labels = torch.where(iou > 0.35, 1, torch.where(iou < 0.2, 0, -1)).int()
    return image, labels, (corner + SIDE / 2 - CENTRES) / SIDE, corner


class RegionProposalNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        convs = [nn.Conv2d(n, m, 5, 2, 2) for n, m in ((1, 16), (16, 32), (32, 32))]
        self.layers = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), convs[2], nn.ReLU(), nn.Conv2d(32, 3, 1))
        self.register_buffer("centres", CENTRES)

    def forward(self, images, labels=None, targets=None, corners=None):
        scores, *deltas = self.layers(images).flatten(2).unbind(1)
        deltas = torch.stack(deltas, dim=-1)
        if labels is None:
            values, indices = torch.topk(scores, 4, dim=1)
            centre = torch.gather(deltas * SIDE + self.centres, 1, indices.unsqueeze(-1).expand(-1, -1, 2))
            return torch.cat([centre - SIDE / 2, centre + SIDE / 2], dim=-1).clamp(0, SIZE), torch.sigmoid(values)
        valid, positive = (labels >= 0).float(), (labels == 1).float()
        bce = F.binary_cross_entropy_with_logits(scores, positive, weight=valid, reduction="sum") / valid.sum()
        smooth = F.smooth_l1_loss(deltas, targets, reduction="none", beta=1 / 9).sum(-1)
        box = (smooth * positive).sum() / torch.clamp(positive.sum(), min=1.0)
        return poptorch.identity_loss(bce + box, reduction="none")


torch.manual_seed(2)
model = RegionProposalNetwork()
opts = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.All)
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=2e-3))
check_learned(train(training, poptorch.DataLoader(opts, Items(256, scene), batch_size=4), epochs=6), 0.6)
training.destroy()
images, _, _, corners = stacked(Items(8, scene, seed=1000)[i] for i in range(8))
boxes, scores = inferred(model, images)
found = torch.stack([box[nms(box, score, 0.5)][0] for box, score in zip(boxes, scores)])
assert box_iou(found, torch.cat([corners, corners + SIDE], dim=1).float()).diagonal().mean() > 0.5
