"""The settings of the training program and the arithmetic of its calls. Knows neither torch nor PopTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ipu_course.errors import SettingsError

PRECISIONS = ("16.16", "16.32", "32.32")
DEFAULT_MODEL = "resnet101"
# Where the hands-on cuts its ResNet-101: this layer begins the second IPU's part.
DEFAULT_SPLIT = ("layer3.8",)
NO_SPLIT = "none"
# The hands-on's own options, which its first line of output repeats.
HANDS_ON_OPTIONS = (
    "async_dataloader",
    "batch_size",
    "device_iterations",
    "eight_bit_io",
    "epochs",
    "gradient_accumulation",
    "precision",
    "replicas",
)


@dataclass(frozen=True)
class Settings:
    """What one run of the program does.

    ``precision`` is "<bits of the images>.<bits of the model>". ``split`` names the layers that begin on the
    next IPU, ``None`` stands for the hands-on's split of ResNet-101 and no split of other models.
    ``limit_batches`` is the number of calls in an epoch, ``None`` for as many as the data fill.
    """

    async_dataloader: bool = False
    batch_size: int = 64
    device_iterations: int = 1
    eight_bit_io: bool = False
    epochs: int = 5
    gradient_accumulation: int = 3
    precision: str = "16.16"
    replicas: int = 1
    data_folder: str = "cifar10_data"
    dataset: str = "auto"
    debug: bool = False
    download: bool = False
    image_size: int = 64
    ladder: bool = False
    learning_rate: float = 0.001
    limit_batches: int | None = None
    measure_loader: bool = False
    model: str = DEFAULT_MODEL
    num_workers: int = 0
    profile_only: bool = False
    seed: int | None = None
    split: tuple[str, ...] | None = None

    @property
    def split_layers(self) -> tuple[str, ...]:
        """Names of the layers that begin on the next IPU."""
        if self.split is None:
            return DEFAULT_SPLIT if self.model == DEFAULT_MODEL else ()
        return () if self.split == (NO_SPLIT,) else self.split

    @property
    def stages(self) -> int:
        """Pipeline stages, one IPU each."""
        return len(self.split_layers) + 1

    @property
    def least_accumulation(self) -> int:
        """The smallest gradient accumulation that fills the pipeline."""
        return 2 * self.stages - 1

    @property
    def images_per_call(self) -> int:
        """Images that one call of the training model takes."""
        return self.batch_size * self.gradient_accumulation * self.device_iterations * self.replicas

    @property
    def image_bits(self) -> int:
        """Bits of one number of an image on its way to the IPU."""
        return 8 if self.eight_bit_io else int(self.precision.split(".")[0])

    def calls_per_epoch(self, images: int) -> int:
        """Calls that one pass over that many images makes."""
        calls = images // self.images_per_call
        return calls if self.limit_batches is None else min(calls, self.limit_batches)

    def as_namespace(self) -> str:
        """The settings as the hands-on prints them, followed by those of the others that were changed."""
        further = sorted(f.name for f in fields(self) if f.name not in HANDS_ON_OPTIONS and self._is_changed(f.name))
        shown = (f"{name}={getattr(self, name)!r}" for name in (*HANDS_ON_OPTIONS, *further))
        return f"Namespace({', '.join(shown)})"

    def changed(self) -> tuple[str, ...]:
        """The options that differ from the defaults, as they are written on the command line."""
        return tuple("--" + f.name.replace("_", "-") for f in fields(self) if self._is_changed(f.name))

    def _is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(Settings, name))


def check_settings(settings: Settings) -> None:
    """Raise ``SettingsError`` when the settings do not go together."""
    _check_ladder(settings)
    if settings.download and settings.dataset == "shapes":
        raise SettingsError("--download fetches CIFAR-10, but --dataset shapes does not use it; leave one of them out")
    least = settings.least_accumulation
    if settings.gradient_accumulation < least:
        raise SettingsError(
            f"--gradient-accumulation {settings.gradient_accumulation} cannot fill the pipeline: training "
            f"{settings.stages} stages needs at least 2 x {settings.stages} - 1 = {least} micro-batches per update; "
            f"use --gradient-accumulation {least} or more, or --split {NO_SPLIT} for a single IPU"
        )


def _check_ladder(settings: Settings) -> None:
    others = [option for option in settings.changed() if option not in ("--ladder", "--debug")]
    if settings.ladder and others:
        raise SettingsError(
            f"--ladder profiles the hands-on's own sequence of settings, so {' and '.join(others)} cannot change it; "
            "leave out the other options, or use --profile-only for settings of your own"
        )


def check_data(settings: Settings, images: int) -> None:
    """Raise ``SettingsError`` when one call takes more images than there are."""
    if settings.images_per_call > images:
        raise SettingsError(
            f"one call takes --batch-size {settings.batch_size} x --gradient-accumulation "
            f"{settings.gradient_accumulation} x --device-iterations {settings.device_iterations} x --replicas "
            f"{settings.replicas} = {settings.images_per_call} images, but there are {images}; nearest settings that "
            f"work: {' or '.join(smaller_calls(settings, images))}"
        )


def smaller_calls(settings: Settings, images: int) -> list[str]:
    """The largest values of one option, or failing that of all of them, that fit a call into ``images``."""
    choices = (
        ("--device-iterations", settings.device_iterations, 1),
        ("--batch-size", settings.batch_size, 1),
        ("--gradient-accumulation", settings.gradient_accumulation, settings.least_accumulation),
        ("--replicas", settings.replicas, 1),
    )
    largest = [(option, images // (settings.images_per_call // value), least) for option, value, least in choices]
    single = [f"{option} {value}" for option, value, least in largest if value >= least]
    if single:
        return single
    batch = max(1, min(settings.batch_size, images // settings.least_accumulation))
    least = settings.least_accumulation
    return [f"--replicas 1 --device-iterations 1 --gradient-accumulation {least} --batch-size {batch}"]
