"""Programs in the form of public applications: half precision, checkpoints, asynchronous loading."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from tutorial_models import ClassificationModel, Shapes, TrainingModelWithLoss

import poptorch


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_half_precision_with_loss_scaling_and_a_scheduler() -> None:
    """The form of the large applications: half weights, scaled loss, warm-up, optimiser options by group."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
            images = images.half()
            logits = self.body(images.flatten(1))
            loss = F.cross_entropy(logits, labels, reduction="mean")
            return poptorch.identity_loss(loss, reduction="none"), (logits.argmax(-1) == labels).float().mean()

    model = Model().half().train()
    opts = poptorch.Options().deviceIterations(2).replicationFactor(2).outputMode(poptorch.OutputMode.Sum)
    opts.Training.gradientAccumulation(2)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.Precision.enableStochasticRounding(True)
    opts.Precision.setPartialsType(torch.half)
    opts.setAvailableMemoryProportion({"IPU0": 0.2})
    opts.randomSeed(42)
    opts._Popart.set("saveInitializersToFile", "weights.onnx")
    opts.enableExecutableCaching(None)

    decay = [p for n, p in model.named_parameters() if "bias" not in n]
    rest = [p for n, p in model.named_parameters() if "bias" in n]
    optimizer = poptorch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=0.02, loss_scaling=128.0, accum_type=torch.float16, first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    training_model = poptorch.trainingModel(model, opts, optimizer)
    dl = poptorch.DataLoader(opts, Shapes(), batch_size=4, shuffle=True, mode=poptorch.DataLoaderMode.Sync)
    datum = next(iter(dl))
    training_model.compile(*datum)
    for _ in range(4):
        for images, labels in dl:
            loss, accuracy = training_model(images, labels)
            scheduler.step()
            training_model.setOptimizer(optimizer)
    steps = opts.device_iterations * opts.Training.gradient_accumulation
    assert loss.shape == accuracy.shape == (2,)
    assert (accuracy / steps).mean() > 0.9
    assert torch.isfinite(loss).all()
    training_model.destroy()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert {type(parameter) for parameter in model.parameters()} == {nn.Parameter}


def test_a_custom_loss_and_dual_code_paths() -> None:
    class CustomLoss(nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(torch.abs(x - target) * 5, reduction="mean")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.loss = nn.Linear(2, 2), CustomLoss()

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            fc = self.layer(x)
            if not poptorch.isRunningOnIpu():
                return fc
            return fc, self.loss(fc, target)

    model = Model()
    x, target = torch.randn(4, 2), torch.zeros(4, 2)
    poptorch_model = poptorch.trainingModel(model)
    before = model(x, target)
    for _ in range(5):
        _out, loss = poptorch_model(x, target)
    assert loss.shape == ()
    assert not torch.equal(before, model(x, target))


def test_resuming_from_a_checkpoint_file() -> None:
    def build() -> Any:
        model = TrainingModelWithLoss(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
        with_blocks = model.model

        class Plain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net, self.loss = with_blocks, nn.CrossEntropyLoss()

            def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
                out = self.net(x)
                return out, self.loss(out, y)

        plain = Plain()
        return plain, poptorch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)

    data = Shapes(32)
    x, y = data.images, data.labels
    torch.manual_seed(0)
    model, optimizer = build()
    training_model = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    for _ in range(3):
        training_model(x, y)
    checkpoint = io.BytesIO()
    torch.save(
        {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 3},
        checkpoint,
    )
    for _ in range(3):
        _, expected = training_model(x, y)

    checkpoint.seek(0)
    state = torch.load(checkpoint)
    model, optimizer = build()
    model.load_state_dict(state["model_state_dict"])
    optimizer.load_state_dict(state["optimizer_state_dict"])
    training_model = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    for _ in range(3):
        _, loss = training_model(x, y)
    torch.testing.assert_close(loss, expected)


def test_a_program_with_an_asynchronous_loader() -> None:
    torch.manual_seed(0)
    model = ClassificationModel()
    opts = poptorch.Options().deviceIterations(2)
    loader = poptorch.DataLoader(
        opts, Shapes(), batch_size=16, shuffle=True, mode=poptorch.DataLoaderMode.Async, num_workers=1
    )
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
    losses = []
    for _ in range(3):
        for data, labels in loader:
            _, loss = training_model(data, labels)
            losses.append(loss.item())
    loader.terminate()
    assert len(losses) == 3 * 8
    assert losses[-1] < 0.5 * losses[0]
