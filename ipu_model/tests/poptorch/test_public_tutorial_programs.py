"""Programs in the form in which public tutorials and guides write them: they run as they stand.

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
from tutorial_models import ClassificationModel, Shapes, TrainingModelWithLoss

import poptorch


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
    "stages": lambda: poptorch.PipelinedExecution(
        poptorch.Stage("B1").ipu(0),
        poptorch.Stage("B2").ipu(1),
        poptorch.Stage("B3").ipu(2),
        poptorch.Stage("B4").ipu(3),
    ),
    "short notation": lambda: poptorch.PipelinedExecution("B1", "B2", "B3", "B4"),
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


def test_layer_wise_annotation_of_an_existing_network() -> None:
    """The first pattern of the execution reference, section 1.2."""

    class Existing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.encoder:
                x = torch.tanh(layer(x))
            return x

    model = Existing()
    model.encoder[4] = poptorch.BeginBlock(model.encoder[4], "second half", ipu_id=1)
    opts = poptorch.Options().deviceIterations(2)
    infer = poptorch.inferenceModel(model, opts)
    x = torch.randn(4, 4)
    torch.testing.assert_close(infer(x), model(x).detach())


def test_inline_annotation_with_named_blocks() -> None:
    """The second pattern of section 1.2: one module for training and inference."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.criterion = nn.Linear(4, 8), nn.Linear(8, 2), nn.CrossEntropyLoss()

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            with poptorch.Block("front"):
                h = self.a(x)
            with poptorch.Block("back"):
                out = self.b(h)
                return out if y is None else (out, self.criterion(out, y))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    opts = poptorch.Options()
    opts.setExecutionStrategy(
        poptorch.PipelinedExecution(poptorch.Stage("front").ipu(0), poptorch.Stage("back").ipu(1))
    )
    opts.Training.gradientAccumulation(8)
    train = poptorch.trainingModel(net, opts, optimizer)
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    losses = [train(x, y)[1].item() for _ in range(20)]
    assert losses[-1] < losses[0]

    opts_inf = opts.clone().deviceIterations(2)
    opts_inf.Training.gradientAccumulation(1)
    infer = poptorch.inferenceModel(net, opts_inf)
    torch.testing.assert_close(infer(x), net(x).detach())


def test_checkpoints_through_a_hook_and_a_product_in_slices() -> None:
    """The third pattern of section 1.2."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(10, 8)
            self.layer = nn.Linear(8, 8)
            self.layer.register_forward_hook(lambda mod, args, out: poptorch.recomputationCheckpoint(out))

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
            h = self.layer(self.emb(tokens))
            logits = poptorch.serializedMatMul(
                h, self.emb.weight.t(), poptorch.MatMulSerializationMode.OutputChannels, factor=5
            )
            return logits, F.cross_entropy(logits, targets)

    model = Tied()
    train = poptorch.trainingModel(model, optimizer=poptorch.optim.AdamW(model.parameters(), lr=0.05))
    tokens = torch.arange(10)
    losses = [train(tokens, tokens.flip(0))[1].item() for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
