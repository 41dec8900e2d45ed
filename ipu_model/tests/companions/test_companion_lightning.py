"""PyTorch Lightning's support of IPUs, unmodified: weights and predictions are those of a plain PyTorch loop."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from companion_packages import need
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import poptorch

need("pytorch_lightning", "lightning", "lightning_graphcore")

SAMPLES, FEATURES, BATCH = 64, 8, 4
RATE = 0.1
# Where the trainer is and where its strategy for IPUs is. The last is Lightning's with Graphcore's own strategy.
FRAMEWORKS = {
    "pytorch-lightning 1.9": ("pytorch_lightning", "pytorch_lightning.strategies"),
    "lightning 2.0": ("lightning.pytorch", "lightning.pytorch.strategies"),
    "lightning-graphcore 0.1": ("lightning.pytorch", "lightning_graphcore"),
}

torch.manual_seed(3)
INPUTS = torch.randn(SAMPLES, FEATURES)
LABELS = (INPUTS[:, 0] > 0).long()


class Lightning:
    """A release of Lightning: its trainer for IPUs, and a small classifier for it."""

    def __init__(self, trainer: str, strategy: str) -> None:
        self.library = importlib.import_module(trainer)
        self._strategy = importlib.import_module(strategy).IPUStrategy

    def trainer(self, devices: int = 1, *, strategy: dict[str, Any] | None = None, **options: Any) -> Any:
        """Return a trainer that prints nothing and, unless told otherwise, keeps no checkpoints."""
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        strategy_of_ipus = self._strategy(**(strategy or {}))
        return self.library.Trainer(
            accelerator="ipu", devices=devices, strategy=strategy_of_ipus, **{"logger": False, **quiet, **options}
        )

    def model(
        self, layers: Callable[[], nn.Sequential], optimiser: Callable[[Iterator[nn.Parameter]], Any] | None = None
    ) -> Any:
        """Return a classifier of these layers; plain SGD without an optimiser."""

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

            def on_test_batch_end(self, outputs: Tensor, *_: Any) -> None:
                self.log("right", outputs.mean())

            def predict_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
                return self.layers(batch[0])

            def configure_optimizers(self) -> Any:
                parameters = self.parameters()
                return torch.optim.SGD(parameters, lr=RATE) if optimiser is None else optimiser(parameters)

        return Classifier()


@pytest.fixture(params=FRAMEWORKS, scope="module")
def lightning(request: pytest.FixtureRequest) -> Lightning:
    return Lightning(*FRAMEWORKS[request.param])


def two_layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 2))


def loader(batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=batch)


def plainly_trained(batch: int, epochs: int, rates: tuple[float, ...] = ()) -> nn.Sequential:
    """Return the layers after plain PyTorch's training with batches of this size."""
    layers = two_layers()
    for epoch in range(epochs):
        for inputs, labels in loader(batch):
            layers.zero_grad()
            nn.functional.cross_entropy(layers(inputs), labels).backward()
            with torch.no_grad():
                for parameter in layers.parameters():
                    parameter -= (rates[epoch] if rates else RATE) * parameter.grad
    return layers


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    for (name, value), other in zip(found.named_parameters(), expected.parameters()):
        torch.testing.assert_close(value, other, msg=lambda text, name=name: f"{name}: {text}")


def test_training_gives_the_weights_of_a_plain_loop(lightning: Lightning) -> None:
    model = lightning.model(two_layers)
    lightning.trainer(max_epochs=2).fit(model, loader())
    assert_same_weights(model.layers, plainly_trained(BATCH, epochs=2))


def test_accumulation_and_replicas_make_one_larger_batch(lightning: Lightning) -> None:
    """Two replicas with two micro-batches each: four micro-batches contribute to one update."""
    training = poptorch.Options().deviceIterations(2).replicationFactor(2)
    training.Training.gradientAccumulation(2)
    model = lightning.model(two_layers)
    trainer = lightning.trainer(
        2, strategy={"training_opts": training, "inference_opts": poptorch.Options()}, max_epochs=2
    )
    trainer.fit(model, loader())
    assert_same_weights(model.layers, plainly_trained(4 * BATCH, epochs=2))


def test_the_trainers_own_options_reach_poptorchs(lightning: Lightning) -> None:
    """`devices` are replicas, `accumulate_grad_batches` micro-batches of an update."""
    model = lightning.model(two_layers)
    trainer = lightning.trainer(2, strategy={"device_iterations": 2}, accumulate_grad_batches=4, max_epochs=1)
    trainer.fit(model, loader())
    assert_same_weights(model.layers, plainly_trained(8 * BATCH, epochs=1))


def test_a_pipeline_over_two_ipus_computes_the_same(lightning: Lightning) -> None:
    def on_two_ipus() -> nn.Sequential:
        layers = two_layers()
        layers[2] = poptorch.BeginBlock(layers[2], ipu_id=1)
        return layers

    training = poptorch.Options().deviceIterations(2)
    training.Training.gradientAccumulation(4)
    model = lightning.model(on_two_ipus)
    options = {"training_opts": training, "inference_opts": poptorch.Options()}
    lightning.trainer(2, strategy=options, max_epochs=1).fit(model, loader())
    assert_same_weights(model.layers, plainly_trained(4 * BATCH, epochs=1))


def test_predictions_are_those_of_the_module(lightning: Lightning) -> None:
    model = lightning.model(two_layers)
    trainer = lightning.trainer(strategy={"device_iterations": 2})
    predictions = trainer.predict(model, loader())
    assert [len(each) for each in predictions] == [2 * BATCH] * (SAMPLES // (2 * BATCH))
    torch.testing.assert_close(torch.cat(predictions), model.layers(INPUTS))


def test_validation_and_test_measure_the_trained_module(lightning: Lightning) -> None:
    model = lightning.model(two_layers)
    trainer = lightning.trainer(max_epochs=2)
    trainer.fit(model, loader(), loader())
    right = (plainly_trained(BATCH, epochs=2)(INPUTS).argmax(-1) == LABELS).float().mean().item()
    assert float(trainer.callback_metrics["right"]) == pytest.approx(right)
    assert trainer.test(model, loader(), verbose=False)[0]["right"] == pytest.approx(right)


def test_half_precision_computes_in_float16(lightning: Lightning) -> None:
    model = lightning.model(two_layers)
    precision: Any = 16
    predictions = torch.cat(lightning.trainer(precision=precision).predict(model, loader()))
    assert predictions.dtype == torch.float16
    torch.testing.assert_close(predictions.float(), model.layers(INPUTS).float(), atol=2e-3, rtol=2e-3)


def test_a_schedule_changes_the_rate_on_the_device(lightning: Lightning) -> None:
    def halving(parameters: Iterator[nn.Parameter]) -> tuple[list[Any], list[Any]]:
        optimiser = torch.optim.SGD(parameters, lr=RATE)
        return [optimiser], [torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)]

    model = lightning.model(two_layers, halving)
    lightning.trainer(max_epochs=3).fit(model, loader())
    assert_same_weights(model.layers, plainly_trained(BATCH, epochs=3, rates=(RATE, RATE / 2, RATE / 4)))


def test_poptorchs_optimisers_and_loaders_are_taken(lightning: Lightning) -> None:
    options = poptorch.Options().deviceIterations(4)
    ready_made = poptorch.DataLoader(options, TensorDataset(INPUTS, LABELS), batch_size=BATCH)
    model = lightning.model(two_layers, lambda parameters: poptorch.optim.SGD(parameters, lr=RATE, loss_scaling=16.0))
    trainer = lightning.trainer(strategy={"training_opts": options, "inference_opts": poptorch.Options()}, max_epochs=2)
    trainer.fit(model, ready_made)
    assert_same_weights(model.layers, plainly_trained(BATCH, epochs=2))


def test_training_goes_on_from_a_checkpoint(lightning: Lightning, tmp_path: Path) -> None:
    keeping = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    first = lightning.trainer(max_epochs=1, **keeping)
    first.fit(lightning.model(two_layers), loader())
    model = lightning.model(two_layers)
    later = lightning.trainer(max_epochs=2, **keeping)
    later.fit(model, loader(), ckpt_path=first.checkpoint_callback.best_model_path)
    assert_same_weights(model.layers, plainly_trained(BATCH, epochs=2))


def test_autoreport_writes_a_report(lightning: Lightning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "{}")  # which the strategy overwrites
    options = {"autoreport": True, "autoreport_dir": str(tmp_path)}
    lightning.trainer(strategy=options, max_epochs=1).fit(lightning.model(two_layers), loader())
    assert list(tmp_path.rglob("profile.json"))
