"""The settings of the MNIST program, as options, and the arithmetic of its steps. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_course.errors import SettingsError
from ipu_course.programs.calls import Factor, check_accumulation, check_call, least_accumulation
from ipu_course.programs.options import check_folder, count, flag, learning_rate_option, option, seed_option

STAGES = 4
PIPELINED, SHARDED = "pipelined", "sharded"
INFERENCE_ITERATIONS = 100
FURTHER = "further options, beyond the tutorial's"


@dataclass(frozen=True)
class MnistSettings:
    """What one run of the program does; the defaults are the tutorial's."""

    batch_size: int = count(40, "micro-batch size for training")
    device_iterations: int = count(10, "weight updates per call of the training model")
    test_batch_size: int = count(8, "batch size for inference")
    epochs: int = count(3, "passes over the training images")
    learning_rate: float = learning_rate_option()
    profile: bool = flag("write a report of time and memory for each model")
    profile_dir: str = option("./profile", "folder for the reports", metavar="DIR")
    strategy: str = option(
        PIPELINED,
        "pipelined: all IPUs work at the same time; sharded: one after another",
        choices=(PIPELINED, SHARDED),
    )
    debug: bool = flag("log in detail")
    offload_optimiser: bool = flag("keep the optimiser's state off the chip")
    gradient_accumulation: int = count(10, "micro-batches per weight update", group=FURTHER)
    data_dir: str = option(
        "mnist_data",
        "folder of torchvision's MNIST files; without them, the bundled digits",
        group=FURTHER,
        metavar="DIR",
    )
    download: bool = flag("download MNIST into the data folder first", group=FURTHER)
    seed: int | None = seed_option(FURTHER)

    @property
    def training_step(self) -> int:
        """Images that one call of the training model takes."""
        return self.batch_size * self.gradient_accumulation * self.device_iterations

    @property
    def test_step(self) -> int:
        """Images that one call of the inference model takes."""
        return self.test_batch_size * INFERENCE_ITERATIONS

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The options whose product is the number of images in a training step."""
        least = least_accumulation(STAGES) if self.strategy == PIPELINED else 1
        return (
            Factor("--batch-size", self.batch_size),
            Factor("--gradient-accumulation", self.gradient_accumulation, least),
            Factor("--device-iterations", self.device_iterations),
        )


def check_data_dir(settings: MnistSettings) -> None:
    """Raise ``SettingsError`` for a data folder that was asked for and is not there."""
    if not settings.download:
        instead = "leave it out for the bundled digits, or let --download make it"
        check_folder("--data-dir", settings.data_dir, MnistSettings.data_dir, instead)


def check_pipeline(settings: MnistSettings) -> None:
    """Raise ``SettingsError`` when the gradient accumulation cannot fill the pipeline."""
    if settings.strategy == PIPELINED:
        check_accumulation(settings.gradient_accumulation, STAGES, f"{STAGES} stages", f"--strategy {SHARDED}")


def check_data(settings: MnistSettings, training_images: int, test_images: int) -> None:
    """Raise ``SettingsError`` when one training or test step takes more images than there are."""
    check_call("one training step", settings.factors, training_images)
    if settings.test_step > test_images:
        largest = test_images // INFERENCE_ITERATIONS
        works = f"use --test-batch-size {largest} or less" if largest else "a larger test set is needed"
        raise SettingsError(
            f"one test step takes --test-batch-size {settings.test_batch_size} x {INFERENCE_ITERATIONS} "
            f"device iterations = {settings.test_step} images, but there are {test_images}; {works}"
        )
