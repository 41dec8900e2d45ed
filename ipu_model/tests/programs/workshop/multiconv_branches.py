"""Independent convolutions in one MultiConv, with options for each; compared with the plain model on the CPU."""

import torch
import torch.nn as nn

import poptorch


class Branches(nn.Module):
    def __init__(self, multi):
        super().__init__()
        self.multi = multi
        self.small, self.large, self.strided = (
            nn.Conv2d(3, 8, 1),
            nn.Conv2d(3, 8, 5, padding=2),
            nn.Conv2d(3, 8, 3, padding=1),
        )
        self.head = nn.Linear(24, 5)

    def convolve(self, x):
        return [conv(x) for conv in (self.small, self.large, self.strided)]

    def forward(self, x, labels=None):
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
        pooled = torch.cat([torch.relu(b).mean(dim=(2, 3)) for b in branches], dim=1)
        logits = self.head(pooled)
        if labels is None:
            return logits
        return logits, nn.functional.cross_entropy(logits, labels)


def train(multi, images, labels):
    torch.manual_seed(0)
    model = Branches(multi)
    opts = poptorch.Options()
    opts.Training.setConvolutionDithering(True)
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    losses = [training_model(images, labels)[1].item() for _ in range(15)]
    training_model.copyWeightsToHost()
    training_model.destroy()
    return model, losses


def main():
    torch.manual_seed(1)
    images, labels = torch.randn(10, 3, 8, 8), torch.arange(10) % 5
    model, losses = train(True, images, labels)
    plain, plain_losses = train(False, images, labels)
    print("with MultiConv:   ", [round(loss, 4) for loss in losses[::5]])
    print("without MultiConv:", [round(loss, 4) for loss in plain_losses[::5]])
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(images), plain(images), rtol=1e-3, atol=1e-3)
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
