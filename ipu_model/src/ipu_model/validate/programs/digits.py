"""The pipelining tutorial's network for handwritten digits, over four IPUs."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor, nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.predict.program import Program, Recomputation
from ipu_model.validate.programs.building import FLOAT, Classifier, adamw, begin_block, captured, images


class Digits(nn.Module):
    """The network of the pipelining tutorial: images [N, 1, 28, 28] to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Flatten(), nn.Linear(320, 256), nn.ReLU())
        self.layer4 = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, 10]."""
        logits: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        return logits


@lru_cache(maxsize=2)
def digits(*, training: bool = True) -> Graph:
    """Return the tutorial's network over four IPUs in fp32: micro-batch 40 with a loss, or 8 for inference."""
    network = Digits()
    for ipu, layer in enumerate((network.layer1, network.layer2, network.layer3, network.layer4)):
        begin_block(layer, ipu)
    if not training:
        return captured(network.eval(), images(8, 1, 28, FLOAT)[0], training=False)
    return captured(Classifier(network, dtype=FLOAT), *images(40, 1, 28, FLOAT))


def digits_program() -> Program:
    """Return the pipelining tutorial's training program: accumulation 10, 10 device iterations, all outputs."""
    return Program(
        step=step_of(digits()), training=True, batching=Batching(10, 10), returns=Returns(Keep.ALL),
        optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE, name="mnist-pipeline",
    )  # fmt: skip


def digits_inference_program() -> Program:
    """Return the pipelining tutorial's test program: 100 device iterations."""
    return Program(
        step=step_of(digits(training=False)), training=False, batching=Batching(100), returns=Returns(Keep.ALL),
        name="mnist-inference",
    )  # fmt: skip
