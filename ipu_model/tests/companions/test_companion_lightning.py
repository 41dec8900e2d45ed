"""PyTorch Lightning's support of IPUs, unmodified: weights and predictions are those of a plain PyTorch loop."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from companion_packages import need, seeded
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import poptorch

need("pytorch_lightning", "lightning", "lightning_graphcore")

SAMPLES, FEATURES, BATCH, RATE = 64, 8, 4, 0.1
# Where the trainer is and where its strategy for IPUs is. The last is Lightning's with Graphcore's own strategy.
FRAMEWORKS = {
    "pytorch-lightning 1.9": ("pytorch_lightning", "pytorch_lightning.strategies"),
    "lightning 2.0": ("lightning.pytorch", "lightning.pytorch.strategies"),
    "lightning-graphcore 0.1": ("lightning.pytorch", "lightning_graphcore"),
}

torch.manual_seed(3)
INPUTS = torch.randn(SAMPLES, FEATURES)
LABELS = (INPUTS[:, 0] > 0).long()


def two_layers() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 2)))


def on_two_ipus() -> nn.Sequential:
    layers = two_layers()
    layers[2] = poptorch.BeginBlock(layers[2], ipu_id=1)
    return layers


def sgd(parameters: Iterator[nn.Parameter]) -> Any:
    return torch.optim.SGD(parameters, lr=RATE)


class Lightning:
    """A release of Lightning: its trainer for IPUs, and a small classifier for it."""

    def __init__(self, trainer: str, strategy: str) -> None:
        self.library = importlib.import_module(trainer)
        self._strategy = importlib.import_module(strategy).IPUStrategy

    def trainer(self, devices: int = 1, strategy: dict[str, Any] | None = None, **options: Any) -> Any:
        """Return a trainer that prints nothing and, unless told otherwise, keeps no checkpoints."""
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        ipus = self._strategy(**(strategy or {}))
        return self.library.Trainer(accelerator="ipu", devices=devices, strategy=ipus, **{**quiet, **options})

    def model(
        self,
        layers: Callable[[], nn.Sequential] = two_layers,
        optimiser: Callable[[Iterator[nn.Parameter]], Any] = sgd,
    ) -> Any:
        class Classifier(self.library.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers()

            def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
                return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

            def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
                return (self.layers(batch[0]).argmax(-1) == batch[1]).float().mean()

            test_step = validation_step

            def on_validation_batch_end(self, outputs: Tensor, *_: Any) -> None:
                self.log("right", outputs.mean())

            on_test_batch_end = on_validation_batch_end

            def predict_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
                return self.layers(batch[0])

            def configure_optimizers(self) -> Any:
                return optimiser(self.parameters())

        return Classifier()


@pytest.fixture(params=FRAMEWORKS, scope="module")
def lightning(request: pytest.FixtureRequest) -> Lightning:
    return Lightning(*FRAMEWORKS[request.param])


def loader(batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=batch)


def plainly_trained(batch: int = BATCH, rates: tuple[float, ...] = (RATE, RATE)) -> nn.Sequential:
    """Return the layers after an epoch of plain PyTorch's training for each rate."""
    layers = two_layers()
    for rate in rates:
        for inputs, labels in loader(batch):
            layers.zero_grad()
            nn.functional.cross_entropy(layers(inputs), labels).backward()
            with torch.no_grad():
                for parameter in layers.parameters():
                    parameter -= rate * parameter.grad
    return layers


def assert_same_weights(model: Any, expected: nn.Module) -> None:
    for (name, value), other in zip(model.layers.named_parameters(), expected.parameters()):
        torch.testing.assert_close(value, other, msg=lambda text, name=name: f"{name}: {text}")


def options(iterations: int, replicas: int, accumulation: int) -> dict[str, Any]:
    training = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    training.Training.gradientAccumulation(accumulation)
    return {"training_opts": training, "inference_opts": poptorch.Options()}


# IPUs, what the strategy and the trainer are told, the layers, and how many micro-batches an update has.
TRAINED: dict[str, tuple[int, Callable[[], dict[str, Any]], dict[str, Any], Callable[[], nn.Sequential], int]] = {
    "as it is": (1, dict, {}, two_layers, 1),
    "accumulation and replicas": (2, lambda: options(2, 2, 2), {}, two_layers, 4),
    "devices are replicas": (2, lambda: {"device_iterations": 2}, {"accumulate_grad_batches": 4}, two_layers, 8),
    "a pipeline over two IPUs": (2, lambda: options(2, 1, 4), {}, on_two_ipus, 4),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_gives_the_weights_of_a_plain_loop(name: str, lightning: Lightning) -> None:
    devices, strategy, more, layers, micro_batches = TRAINED[name]
    model = lightning.model(layers)
    lightning.trainer(devices, strategy(), max_epochs=2, **more).fit(model, loader())
    assert_same_weights(model, plainly_trained(micro_batches * BATCH))


def test_predictions_are_those_of_the_module(lightning: Lightning) -> None:
    model = lightning.model()
    predictions = lightning.trainer(strategy={"device_iterations": 2}).predict(model, loader())
    assert [len(prediction) for prediction in predictions] == [2 * BATCH] * (SAMPLES // (2 * BATCH))
    torch.testing.assert_close(torch.cat(predictions), model.layers(INPUTS))


def test_validation_and_test_measure_the_trained_module(lightning: Lightning) -> None:
    model = lightning.model()
    trainer = lightning.trainer(max_epochs=2)
    trainer.fit(model, loader(), loader())
    right = (plainly_trained()(INPUTS).argmax(-1) == LABELS).float().mean().item()
    assert float(trainer.callback_metrics["right"]) == pytest.approx(right)
    assert trainer.test(model, loader(), verbose=False)[0]["right"] == pytest.approx(right)


def test_half_precision_computes_in_float16(lightning: Lightning) -> None:
    model = lightning.model()
    predictions = torch.cat(lightning.trainer(precision=16).predict(model, loader()))
    assert predictions.dtype == torch.float16
    torch.testing.assert_close(predictions.float(), model.layers(INPUTS).float(), atol=2e-3, rtol=2e-3)


def test_a_schedule_changes_the_rate_on_the_device(lightning: Lightning) -> None:
    def halving(parameters: Iterator[nn.Parameter]) -> tuple[list[Any], list[Any]]:
        optimiser = sgd(parameters)
        return [optimiser], [torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)]

    model = lightning.model(optimiser=halving)
    lightning.trainer(max_epochs=3).fit(model, loader())
    assert_same_weights(model, plainly_trained(rates=(RATE, RATE / 2, RATE / 4)))


def test_poptorchs_optimisers_and_loaders_are_taken(lightning: Lightning) -> None:
    strategy = options(4, 1, 1)
    ready_made = poptorch.DataLoader(strategy["training_opts"], TensorDataset(INPUTS, LABELS), batch_size=BATCH)
    model = lightning.model(optimiser=lambda weights: poptorch.optim.SGD(weights, lr=RATE, loss_scaling=16.0))
    lightning.trainer(strategy=strategy, max_epochs=2).fit(model, ready_made)
    assert_same_weights(model, plainly_trained())


def test_training_goes_on_from_a_checkpoint(lightning: Lightning, tmp_path: Path) -> None:
    keeping = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    first = lightning.trainer(max_epochs=1, **keeping)
    first.fit(lightning.model(), loader())
    model = lightning.model()
    path = first.checkpoint_callback.best_model_path
    lightning.trainer(max_epochs=2, **keeping).fit(model, loader(), ckpt_path=path)
    assert_same_weights(model, plainly_trained())


def test_autoreport_writes_a_report(lightning: Lightning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "{}")  # which the strategy overwrites
    reporting = {"autoreport": True, "autoreport_dir": str(tmp_path)}
    lightning.trainer(strategy=reporting, max_epochs=1).fit(lightning.model(), loader())
    assert list(tmp_path.rglob("profile.json"))
