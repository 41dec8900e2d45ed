"""The settings of the MNIST program and the arithmetic of its steps. Knows neither torch nor PopTorch."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_course.errors import SettingsError

STAGES = 4
PIPELINED = "pipelined"
SHARDED = "sharded"
STRATEGIES = (PIPELINED, SHARDED)
PIPELINE_MINIMUM = 2 * STAGES - 1
INFERENCE_ITERATIONS = 100


@dataclass(frozen=True)
class Settings:
    """What one run of the program does; the defaults are the tutorial's."""

    batch_size: int = 40
    device_iterations: int = 10
    test_batch_size: int = 8
    epochs: int = 3
    learning_rate: float = 0.001
    profile: bool = False
    profile_dir: str = "./profile"
    strategy: str = PIPELINED
    debug: bool = False
    offload_optimiser: bool = False
    gradient_accumulation: int = 10
    data_dir: str = "mnist_data"
    download: bool = False
    seed: int | None = None

    @property
    def training_step(self) -> int:
        """Images that one call of the training model takes."""
        return self.batch_size * self.gradient_accumulation * self.device_iterations

    @property
    def test_step(self) -> int:
        """Images that one call of the inference model takes."""
        return self.test_batch_size * INFERENCE_ITERATIONS

    @property
    def least_accumulation(self) -> int:
        """The smallest gradient accumulation that the strategy allows."""
        return PIPELINE_MINIMUM if self.strategy == PIPELINED else 1


def check_pipeline(settings: Settings) -> None:
    """Raise ``SettingsError`` when the gradient accumulation cannot fill the pipeline."""
    if settings.gradient_accumulation < settings.least_accumulation:
        raise SettingsError(
            f"--gradient-accumulation {settings.gradient_accumulation} cannot fill the pipeline: training "
            f"{STAGES} stages needs at least 2 x {STAGES} - 1 = {PIPELINE_MINIMUM} micro-batches per update; "
            f"use --gradient-accumulation {PIPELINE_MINIMUM} or more, or --strategy {SHARDED}"
        )


def check_data(settings: Settings, training_images: int, test_images: int) -> None:
    """Raise ``SettingsError`` when one training or test step takes more images than there are."""
    if settings.training_step > training_images:
        raise SettingsError(
            f"one training step takes --batch-size {settings.batch_size} x --gradient-accumulation "
            f"{settings.gradient_accumulation} x --device-iterations {settings.device_iterations} = "
            f"{settings.training_step} images, but there are {training_images}; nearest settings that work: "
            + " or ".join(smaller_training_steps(settings, training_images))
        )
    if settings.test_step > test_images:
        largest = test_images // INFERENCE_ITERATIONS
        works = f"use --test-batch-size {largest} or less" if largest else "a larger test set is needed"
        raise SettingsError(
            f"one test step takes --test-batch-size {settings.test_batch_size} x {INFERENCE_ITERATIONS} "
            f"device iterations = {settings.test_step} images, but there are {test_images}; {works}"
        )


def smaller_training_steps(settings: Settings, images: int) -> list[str]:
    """The largest values of one option, or failing that of several, that fit a step into ``images``."""
    batch, accumulation = settings.batch_size, settings.gradient_accumulation
    iterations = settings.device_iterations
    choices = (
        ("--device-iterations", images // (batch * accumulation), 1),
        ("--batch-size", images // (accumulation * iterations), 1),
        ("--gradient-accumulation", images // (batch * iterations), settings.least_accumulation),
    )
    single = [f"{option} {largest}" for option, largest, least in choices if largest >= least]
    if single:
        return single
    least = settings.least_accumulation
    largest_batch = max(1, min(batch, images // least))
    return [f"--device-iterations 1 --gradient-accumulation {least} --batch-size {largest_batch}"]
