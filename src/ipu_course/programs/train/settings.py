"""The settings of the training program, as options, and the arithmetic of its calls. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ipu_course.errors import SettingsError
from ipu_course.programs.calls import Factor, check_accumulation, check_call, least_accumulation
from ipu_course.programs.options import (
    NO_SPLIT,
    PRECISIONS,
    check_folder,
    count,
    flag,
    integer_from_zero,
    learning_rate_option,
    option,
    seed_option,
)

DEFAULT_MODEL = "resnet101"
# Where the workshop cuts its ResNet-101: this layer begins the second IPU's part.
DEFAULT_SPLIT = ("layer3.8",)
# The workshop's own options, which the first line of its output repeats.
WORKSHOP_OPTIONS = (
    "async_dataloader",
    "batch_size",
    "device_iterations",
    "eight_bit_io",
    "epochs",
    "gradient_accumulation",
    "precision",
    "replicas",
)
MODEL, DATA, PROFILES = "model and training, beyond the workshop's", "data", "modelled profiles"


@dataclass(frozen=True)
class TrainSettings:
    """What one run of the program does.

    ``precision`` is "<bits of the images>.<bits of the model>". ``split`` names the layers that begin on the
    next IPU; ``None`` stands for the workshop's split of ResNet-101 and no split of other models.
    ``limit_batches`` is the number of calls in an epoch, ``None`` for as many as the data fill.
    """

    batch_size: int = count(64, "micro-batch size")
    precision: str = option("16.16", "bits of the images, then of the model", choices=PRECISIONS)
    gradient_accumulation: int = count(3, "micro-batches per weight update")
    device_iterations: int = count(1, "weight updates per call")
    eight_bit_io: bool = flag("send images as uint8, and normalise them on the IPU")
    async_dataloader: bool = flag("load the next batch while the IPUs work")
    replicas: int = count(1, "copies of the model that train together")
    epochs: int = count(5, "passes over the images")
    model: str = option(DEFAULT_MODEL, "a classifier of torchvision", group=MODEL, metavar="NAME")
    split: tuple[str, ...] | None = option(
        None,
        f"layers that begin on the next IPU, such as layer3.8; {NO_SPLIT}: one IPU (default: layer3.8 for "
        f"{DEFAULT_MODEL}, {NO_SPLIT} for other models)",
        group=MODEL,
        nargs="+",
        metavar="LAYER",
    )
    image_size: int = count(64, "pixels in a row and in a column", group=MODEL)
    limit_batches: int | None = count(None, "calls in an epoch (default: as many as the images fill)", group=MODEL)
    learning_rate: float = learning_rate_option(MODEL)
    seed: int | None = seed_option(MODEL)
    debug: bool = flag("log in detail", MODEL)
    dataset: str = option(
        "auto",
        "auto: CIFAR-10 where its files are, otherwise synthetic shapes in its format",
        group=DATA,
        choices=("auto", "cifar10", "shapes"),
    )
    data_folder: str = option("cifar10_data", "folder of torchvision's CIFAR-10 files", group=DATA, metavar="DIR")
    download: bool = flag("download CIFAR-10 into the data folder first", DATA)
    num_workers: int = option(
        0, "processes that load images; 0: the program itself", group=DATA, type=integer_from_zero, metavar="N"
    )
    profile_only: bool = flag("print the modelled profile, and do not train", PROFILES)
    ladder: bool = flag("model every step of the ladder, and compare it with the workshop's results", PROFILES)
    measure_loader: bool = flag(
        "model the host with this machine's loader, measured first (default: the workshop's host)", PROFILES
    )

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
    def factors(self) -> tuple[Factor, ...]:
        """The options whose product is the number of images in a call."""
        return (
            Factor("--batch-size", self.batch_size),
            Factor("--gradient-accumulation", self.gradient_accumulation, least_accumulation(self.stages)),
            Factor("--device-iterations", self.device_iterations),
            Factor("--replicas", self.replicas),
        )

    @property
    def images_per_call(self) -> int:
        """Images that one call of the training model takes."""
        return self.batch_size * self.gradient_accumulation * self.device_iterations * self.replicas

    @property
    def image_bits(self) -> int:
        """Bits of one number of an image on its way to the IPU."""
        return 8 if self.eight_bit_io else int(self.precision.split(".")[0])

    def calls_per_epoch(self, images: int) -> int:
        """Return the calls that one pass over that many images makes."""
        calls = images // self.images_per_call
        return calls if self.limit_batches is None else min(calls, self.limit_batches)

    def as_namespace(self) -> str:
        """Return the settings as the workshop's program prints them, followed by the others that were changed."""
        further = sorted(f.name for f in fields(self) if f.name not in WORKSHOP_OPTIONS and self._is_changed(f.name))
        shown = (f"{name}={getattr(self, name)!r}" for name in (*WORKSHOP_OPTIONS, *further))
        return f"Namespace({', '.join(shown)})"

    def _is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(TrainSettings, name))


def check_settings(settings: TrainSettings) -> None:
    """Raise ``SettingsError`` when the settings do not go together."""
    _check_ladder(settings)
    if settings.download and settings.dataset == "shapes":
        raise SettingsError("--download fetches CIFAR-10, but --dataset shapes does not use it; leave one of them out")
    if settings.dataset == "auto" and not settings.download:
        instead = "leave it out for the usual one, or take --dataset shapes, which needs no files"
        check_folder("--data-folder", settings.data_folder, TrainSettings.data_folder, instead)
    check_accumulation(
        settings.gradient_accumulation,
        settings.stages,
        f"{settings.stages} stages",
        f"--split {NO_SPLIT} for a single IPU",
    )


def _check_ladder(settings: TrainSettings) -> None:
    changed = sorted(f.name for f in fields(settings) if settings._is_changed(f.name))
    others = ["--" + name.replace("_", "-") for name in changed if name not in ("ladder", "debug")]
    if settings.ladder and others:
        raise SettingsError(
            f"--ladder profiles the workshop's own sequence of settings, so {' and '.join(others)} cannot change it; "
            "leave out the other options, or use --profile-only for settings of your own"
        )


def check_data(settings: TrainSettings, images: int) -> None:
    """Raise ``SettingsError`` when one call, or the calls asked for, take more images than there are."""
    check_call("one call", settings.factors, images)
    calls = images // settings.images_per_call
    if settings.limit_batches is not None and settings.limit_batches > calls:
        raise SettingsError(
            f"--limit-batches {settings.limit_batches}: {images} images fill {calls} calls of "
            f"{settings.images_per_call}; use --limit-batches {calls} or less, or leave it out"
        )
