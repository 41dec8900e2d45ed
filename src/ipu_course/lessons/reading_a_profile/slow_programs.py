"""The three slow programs of lesson 14, which are limited by different parts, and how each is mended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_course import engine, show
from ipu_course.models import ClassifierWithLoss, WithLoss
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, ModelledModule, Profile

SECONDS_PER_PHOTOGRAPH = 0.002  # assumed: what one core needs to decode and crop one
WORKERS = 4
PHOTOGRAPHS, SIDE, PHOTOGRAPHS_ACCUMULATED = 16, 128, 8
SENTENCES, LENGTH, VOCABULARY, WORD_SIZE, LAYERS, HEADS, SENTENCES_ACCUMULATED = 4, 128, 50_304, 256, 12, 4, 32
RECORDS, RECORD_SIZE, RECORD_LAYERS, RECORDS_ACCUMULATED = 64, 2048, 8, 8
CLASSES = 100
CUTS = (3, 6, 9)  # three of program B's layers on each IPU

Place = Callable[[Any], object]


class PlainTransformerLayer(nn.Module):
    """A transformer's layer: words [N, length, size] to the same."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.operands, self.mixed = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, words: Tensor) -> Tensor:
        samples, length, size = words.shape
        three = self.operands(self.before(words)).chunk(3, -1)
        query, key, value = (each.view(samples, length, self.heads, -1).transpose(1, 2) for each in three)
        scores = torch.softmax(query @ key.transpose(-1, -2) / (size // self.heads) ** 0.5, -1)
        words = words + self.mixed((scores @ value).transpose(1, 2).reshape(samples, length, size))
        return words + self.narrow(nn.functional.gelu(self.wide(self.between(words))))  # type: ignore[no-any-return]


class NextWord(nn.Module):
    """Program B: words [N, length] as numbers, and the words to predict, to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WORD_SIZE)
        self.layers = nn.ModuleList(PlainTransformerLayer(WORD_SIZE, HEADS) for _ in range(LAYERS))
        self.head = nn.Linear(WORD_SIZE, VOCABULARY, bias=False)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden).flatten(0, 1).float()
        loss: Tensor = poptorch.identity_loss(nn.functional.cross_entropy(logits, following.flatten()), "none")
        return loss


def begin(model: Any, layer: int, ipu: int) -> None:
    """Let an IPU begin at a layer of program B, counted from 0."""
    model.layers[layer] = poptorch.BeginBlock(model.layers[layer], ipu_id=ipu)


def begin_projection(model: Any, ipu: int) -> None:
    """Let an IPU begin at the projection of program B, behind all layers."""
    model.head = poptorch.BeginBlock(model.head, ipu_id=ipu)


def three_layers_each(model: Any) -> None:
    """Cut program B as it is: three layers on each IPU."""
    for ipu, layer in enumerate(CUTS, 1):
        begin(model, layer, ipu)


def photographs() -> ModelledModule:
    """Return program A: ResNet-18 on photographs of 128 x 128 pixels."""
    with torch.device("meta"):
        network = ClassifierWithLoss(torchvision.models.resnet18(num_classes=CLASSES)).half()
        images = torch.empty(PHOTOGRAPHS, 3, SIDE, SIDE, dtype=torch.half)
        labels = torch.empty(PHOTOGRAPHS, dtype=torch.int64)
    options = poptorch.Options()
    options.Training.gradientAccumulation(PHOTOGRAPHS_ACCUMULATED)
    return engine.modelled_module(network, (images, labels), options, _sgd(network))


def sentences(place: Place = three_layers_each) -> ModelledModule:
    """Return program B, a transformer with a large vocabulary in a pipeline; ``place`` says where IPUs begin."""
    with torch.device("meta"):
        network = NextWord()
        place(network)
        network = network.half()
        words = torch.empty(SENTENCES, LENGTH, dtype=torch.int64)
    options = poptorch.Options()
    options.Training.gradientAccumulation(SENTENCES_ACCUMULATED)
    return engine.modelled_module(network, (words, words), options, _sgd(network))


def state_off_the_chip() -> poptorch.Options:
    """Return the options of program C as it is."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(RECORDS_ACCUMULATED)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    return options


def records(options: poptorch.Options | None = None) -> ModelledModule:
    """Return program C: eight linear layers on records of 2,048 numbers, trained with AdamW."""
    layers: list[nn.Module] = []
    with torch.device("meta"):
        for _ in range(RECORD_LAYERS):
            layers += [nn.Linear(RECORD_SIZE, RECORD_SIZE), nn.GELU()]
        network = WithLoss(nn.Sequential(*layers, nn.Linear(RECORD_SIZE, CLASSES))).half()
        rows = torch.empty(RECORDS, RECORD_SIZE, dtype=torch.half)
        labels = torch.empty(RECORDS, dtype=torch.int64)
    optimiser = poptorch.optim.AdamW(network.parameters(), lr=0.001, loss_scaling=128)
    return engine.modelled_module(network, (rows, labels), options or state_off_the_chip(), optimiser)


def _sgd(network: nn.Module) -> Any:
    return poptorch.optim.SGD(network.parameters(), lr=0.1, loss_scaling=128)


@engine.needs_the_model
def loading(workers: int = WORKERS) -> HostWork:
    """Return the work of program A's loader, with so many worker processes, each on a core of its own."""
    return engine.host_work(SECONDS_PER_PHOTOGRAPH, 0.0, True, workers, "assumed: 2 ms for a photograph")


@dataclass(frozen=True)
class SlowProgram:
    """A program by its name: what it is, what its samples are called, and its profile."""

    name: str
    what: str
    samples: str
    profile: Profile


class SlowPrograms(NamedTuple):
    """The three programs as they are."""

    a: SlowProgram
    b: SlowProgram
    c: SlowProgram

    def named(self, name: str) -> SlowProgram:
        """Return the program "A", "B" or "C"."""
        return next(each for each in self if each.name == name)


WHAT = {
    "A": (f"ResNet-18 on photographs, 1 IPU, a loader with {WORKERS} workers", "photographs"),
    "B": ("a transformer that predicts one of 50,304 words, 4 IPUs, 3 of its 12 layers on each", "sentences"),
    "C": ("8 linear layers with AdamW on records of 2,048 numbers, 1 IPU", "records"),
}


@lru_cache(maxsize=1)
def captured_photographs() -> ModelledModule:
    """Capture program A once."""
    return photographs()


@lru_cache(maxsize=1)
def captured_sentences() -> ModelledModule:
    """Capture program B once."""
    return sentences()


@lru_cache(maxsize=1)
def captured_records() -> ModelledModule:
    """Capture program C once."""
    return records()


@engine.needs_the_model
def slow_programs() -> SlowPrograms:
    """Return the three programs as they are, with their profiles."""
    return _slow_programs()


@lru_cache(maxsize=1)
def _slow_programs() -> SlowPrograms:
    profiles = (
        captured_photographs().profile(host=loading()),
        captured_sentences().profile(),
        captured_records().profile(),
    )
    return SlowPrograms(*(SlowProgram(name, *WHAT[name], of) for name, of in zip(WHAT, profiles)))


def with_workers(workers: int) -> Profile:
    """Return the profile of program A with another number of workers."""
    return captured_photographs().profile(host=loading(workers))


def show_programs(programs: SlowPrograms) -> None:
    """Show what the three programs are, what they reach, and how far that is from the peak of their IPUs."""
    if programs is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    for each in programs:
        profile = each.profile
        most = max(op.peak_flops_per_cycle for op in profile.work) * profile.machine.clock_hz * len(profile.cycles)
        rows.append(
            {
                "program": each.name,
                "what it trains": each.what,
                "throughput, modelled": f"{profile.samples_per_second:,.0f} {each.samples}/s",
                "of the matrix units' peak, modelled": f"{profile.flops_per_call / profile.call_seconds / most:.1%}",
            }
        )
    show.table(rows, index="program")
