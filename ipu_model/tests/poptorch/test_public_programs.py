"""Programs in the form in which public tutorials and applications write them: they run as they stand.

Sizes are small, and progress bars go where a test can see them; nothing else is adapted to this
implementation.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

import poptorch


class Shapes(torch.utils.data.Dataset):  # type: ignore[type-arg]  # as tutorials write it
    """Images 8x8 with a bright square in one of four corners: the corner is the class."""

    def __init__(self, n: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (n,), generator=generator)
        self.images = 0.3 * torch.randn(n, 1, 8, 8, generator=generator)
        for image, label in zip(self.images, self.labels):
            row, column = divmod(int(label), 2)
            image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class ClassificationModel(nn.Module):
    """The form of the introductory tutorial: the loss is computed in forward when there are labels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(5, 12, 2)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(48, 24)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(24, 4)
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.loss = nn.NLLLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.norm(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        x = self.log_softmax(self.fc2(x))
        # The model is responsible for the calculation of the loss when using an IPU. We do it this way:
        if self.training:
            return x, self.loss(x, labels)
        return x


class TrainingModelWithLoss(nn.Module):
    """The form of the pipelining tutorial: a wrapper adds the loss in the last block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, args: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        output = self.model(args)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            loss = self.loss(output, labels)
        return output, loss


def test_the_introductory_tutorial() -> None:
    torch.manual_seed(0)
    model = ClassificationModel()
    model.train()

    opts = poptorch.Options()
    opts.deviceIterations(4)
    train_dataloader = poptorch.DataLoader(opts, Shapes(), batch_size=8, shuffle=True, num_workers=0)

    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    poptorch_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)

    epochs = 3
    for _epoch in tqdm(range(epochs), desc="epochs", file=io.StringIO()):
        total_loss = 0.0
        for data, labels in tqdm(train_dataloader, desc="batches", leave=False, file=io.StringIO()):
            output, loss = poptorch_model(data, labels)
            total_loss += loss
    assert output.shape == (8, 4)
    assert total_loss / len(train_dataloader) < 0.2

    poptorch_model.detachFromDevice()
    model = model.eval()
    poptorch_model_inf = poptorch.inferenceModel(model, options=opts)
    test_dataloader = poptorch.DataLoader(opts, Shapes(64), batch_size=8, num_workers=0)
    predictions, labels_ = [], []
    for data, label in test_dataloader:
        predictions += poptorch_model_inf(data).data.max(dim=1).indices
        labels_ += label
    poptorch_model_inf.detachFromDevice()
    accuracy = sum(int(p) == int(t) for p, t in zip(predictions, labels_)) / len(labels_)
    assert accuracy > 0.95

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = ClassificationModel()
    fresh.load_state_dict(torch.load(file))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2), nn.ReLU())
        self.layer3 = nn.Linear(32, 16)
        self.layer3_act = nn.ReLU()
        self.layer3_dropout = nn.Dropout(0.1)
        self.layer4 = nn.Linear(16, 4)
        self.softmax = nn.Softmax(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = x.view(-1, 32)
            x = self.layer3_act(self.layer3(x))
        with poptorch.Block("B4"):
            return self.softmax(self.layer4(self.layer3_dropout(x)))


def accuracy_of(predictions: torch.Tensor, labels: torch.Tensor) -> float:
    _, indices = torch.max(predictions, dim=1)
    matching = torch.eq(indices, labels[-predictions.size()[0] :])
    return matching.float().mean().item()


STRATEGIES = {
    "two blocks to a stage": lambda: poptorch.PipelinedExecution(
        poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3", "B4").ipu(1)
    ),
    "sharded": lambda: poptorch.ShardedExecution("B1", "B2", "B3", "B4"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_pipelining_tutorial(strategy: str) -> None:
    torch.manual_seed(0)
    model = Network()
    model_with_loss = TrainingModelWithLoss(model)
    train_opts = poptorch.Options()
    train_opts.deviceIterations(2)
    train_opts.Training.gradientAccumulation(8)
    train_opts.setExecutionStrategy(STRATEGIES[strategy]())
    train_opts.outputMode(poptorch.OutputMode.All)
    train_opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    training_data = poptorch.DataLoader(train_opts, Shapes(), batch_size=2, shuffle=True, drop_last=True)

    optimizer = poptorch.optim.AdamW(model_with_loss.parameters(), lr=0.02)
    training_model = poptorch.trainingModel(model_with_loss, train_opts, optimizer=optimizer)
    for _ in range(3):
        with tqdm(training_data, total=len(training_data), leave=False, file=io.StringIO()) as bar:
            for data, labels in bar:
                preds, losses = training_model(data, labels)
                with torch.no_grad():
                    mean_loss = torch.mean(losses).item()
                    acc = accuracy_of(preds, labels)
                bar.set_description(f"Loss: {mean_loss:0.4f} | Accuracy: {acc:05.2%}")
    assert acc > 0.9
    training_model.detachFromDevice()

    inference_opts = poptorch.Options()
    inference_opts.deviceIterations(4)
    inference_opts.setExecutionStrategy(STRATEGIES[strategy]())
    model.eval()
    inference_model = poptorch.inferenceModel(model, options=inference_opts)
    test_data = poptorch.DataLoader(inference_opts, Shapes(64), batch_size=4, drop_last=True)
    total = sum(accuracy_of(inference_model(data), labels) for data, labels in test_data)
    assert total / len(test_data) > 0.95


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
