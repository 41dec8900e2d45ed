"""Independent convolutions in one MultiConv, with options for each; compared with the plain model on the CPU."""

import torch
from program_kit import WithLoss, check_close, check_learned
from torch import nn

import poptorch


class Branches(nn.Module):
    def __init__(self, multi):
        super().__init__()
        self.multi = multi
        self.convs = nn.ModuleList(nn.Conv2d(3, 8, size, padding=size // 2) for size in (1, 5, 3))
        self.head = nn.Linear(24, 5)

    def convolve(self, x):
        return [conv(x) for conv in self.convs]

    def forward(self, x):
        if self.multi and poptorch.isRunningOnIpu():
            with (
                poptorch.MultiConv()
                .availableMemoryProportions((0.2, 0.4, 0.2))
                .partialsTypes([torch.float, torch.half, torch.float])
                .planType(poptorch.MultiConvPlanType.Parallel)
                .perConvReservedTiles(60)
                .cycleBackOff(0.3)
                .enableConvDithering(False)
            ):
                branches = self.convolve(x)
        else:
            branches = self.convolve(x)
        return self.head(torch.cat([torch.relu(b).mean(dim=(2, 3)) for b in branches], dim=1))


def train(multi, images, labels):
    torch.manual_seed(0)
    model = WithLoss(Branches(multi), nn.functional.cross_entropy)
    opts = poptorch.Options()
    opts.Training.setConvolutionDithering(True)
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    check_learned([training_model(images, labels)[1].item() for _ in range(15)], 1)
    training_model.copyWeightsToHost()
    training_model.destroy()
    return model


torch.manual_seed(1)
images, labels = torch.randn(10, 3, 8, 8), torch.arange(10) % 5
model, plain = train(True, images, labels), train(False, images, labels)
check_close(list(model.parameters()), list(plain.parameters()), 1e-3)
check_close(poptorch.inferenceModel(model)(images), plain(images), 1e-3)
