"""The five programs of lesson 13 that do not fit, each for another reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.models import WithLoss

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

RECOMPUTE_ALL = 4  # PopART's RecomputationType: all but what the checkpoints keep
CHANNELS, BLOCKS = 64, 8
EXPERTS, EXPERT_WIDTH = 710, 32
WIDTHS = tuple(32 + 4 * place for place in range(53))
WIDE, LAYERS = 2048, 14
WORDS, WORD_SIZE = 60_000, 256
CLASSES = 10

Pass = Callable[[Sequence[nn.Module], Tensor], Tensor]
Logits = Callable[[Tensor, Tensor], Tensor]


def plain_forward(blocks: Sequence[nn.Module], images: Tensor) -> Tensor:
    """Run the blocks one after another."""
    for block in blocks:
        images = block(images)
    return images


def plain_logits(words: Tensor, weight: Tensor) -> Tensor:
    """Words [rows, size] and a weight [vocabulary, size] to logits [rows, vocabulary]."""
    return words @ weight.t()


def convolution(before: int, after: int) -> nn.Sequential:
    """Return a convolution with its normalisation and activation."""
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


class Blocks(nn.Module):
    """Program A: images [N, 3, H, W] to logits; ``run`` runs the blocks."""

    def __init__(self, run: Pass = plain_forward) -> None:
        super().__init__()
        channels = (3, *[CHANNELS] * BLOCKS)
        self.blocks = nn.ModuleList(convolution(*pair) for pair in zip(channels, channels[1:]))
        self.head = nn.Linear(CHANNELS, CLASSES)
        self.run = run

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.run(list(self.blocks), images).mean((2, 3)))  # type: ignore[no-any-return]  # a Module's


class Experts(nn.Module):
    """Many small layers beside each other: rows [N, width] to the sum of their positive outputs."""

    def __init__(self, experts: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)

    def forward(self, rows: Tensor) -> Tensor:
        total = torch.zeros_like(rows)
        for expert in self.experts:
            total = total + torch.relu(expert(rows))
        return total


def experts(count: int = EXPERTS) -> list[nn.Linear]:
    """Return the small layers of program B."""
    return [nn.Linear(EXPERT_WIDTH, EXPERT_WIDTH) for _ in range(count)]


def with_head(body: nn.Module) -> nn.Sequential:
    """Program B: rows [N, 32] to logits, after any module with the form of ``Experts``."""
    return nn.Sequential(body, nn.Linear(EXPERT_WIDTH, CLASSES))


def convolutions(widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    """Program C: images [N, 3, H, W] to logits, through convolutions with these numbers of output channels."""
    channels = (3, *widths)
    body = [convolution(*pair) for pair in zip(channels, channels[1:])]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


def linear_layers() -> nn.Sequential:
    """Program D: images [N, 3, 16, 16] to logits, through 14 layers of 2,048 x 2,048."""
    sizes = (3 * 16 * 16, *[WIDE] * (LAYERS + 1))
    body: list[nn.Module] = [nn.Flatten()]
    for before, after in zip(sizes, sizes[1:]):
        body += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(WIDE, CLASSES))


class Vocabulary(nn.Module):
    """Program E: words [N, length] as numbers to logits [N x length, vocabulary]; ``logits`` is the last product."""

    def __init__(self, logits: Logits = plain_logits) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WORD_SIZE)
        self.projection = nn.Linear(WORD_SIZE, WORDS, bias=False)
        self.logits = logits

    def forward(self, words: Tensor) -> Tensor:
        return self.logits(self.embedding(words).flatten(0, 1), self.projection.weight)


def with_recomputation() -> poptorch.Options:
    """Return options that recompute everything but checkpoints; one IPU does not do so by default."""
    options = poptorch.Options()
    options._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    return options


@dataclass(frozen=True)
class BrokenProgram:
    """A program that does not fit: its name, what it is, and how to make it for any micro-batch.

    ``micro_batch`` is the number of samples, ``shape`` that of one sample, and ``answers`` the labels of one sample.
    """

    name: str
    what: str
    network: Callable[[], nn.Module]
    micro_batch: int
    shape: tuple[int, ...]
    answers: int = 1
    adam: bool = False
    words: bool = False

    def modelled(
        self, network: nn.Module | None = None, options: poptorch.Options | None = None, micro_batch: int | None = None
    ) -> ModelledModule:
        """Capture the program, perhaps with another network, other options or another micro-batch."""
        samples = micro_batch or self.micro_batch
        with torch.device("meta"):
            module = WithLoss(self.network() if network is None else network).to("meta")
            inputs = torch.zeros((samples, *self.shape), dtype=torch.int64 if self.words else torch.float32)
            labels = torch.zeros(samples * self.answers, dtype=torch.int64)
        return engine.modelled_module(module, (inputs, labels), options or poptorch.Options(), self.optimiser(module))

    def optimiser(self, module: nn.Module) -> Any:
        """Return the program's optimiser for the parameters of ``module``."""
        kind = poptorch.optim.AdamW if self.adam else poptorch.optim.SGD
        return kind(module.parameters(), lr=0.001)


A = BrokenProgram("A", "8 convolutions of 64 channels, 8 images of 128 x 128", Blocks, 8, (3, 128, 128))
B = BrokenProgram("B", "710 linear layers of 32 x 32 side by side, AdamW", lambda: with_head(Experts(experts())), 4,
                  (EXPERT_WIDTH,), adam=True)  # fmt: skip
C = BrokenProgram("C", "53 convolutions of 32 to 240 channels, 2 images of 16 x 16", convolutions, 2, (3, 16, 16))
D = BrokenProgram("D", "14 linear layers of 2,048 x 2,048, AdamW", linear_layers, 4, (3, 16, 16), adam=True)
E = BrokenProgram("E", "60,000 words: an embedding and a projection of 256", Vocabulary, 4, (128,), answers=128,
                  words=True)  # fmt: skip
PROGRAMS = (A, B, C, D, E)


def recomputed(forward: Pass) -> Profile:
    """Return the profile of program A with another ``forward``, which computes all but its checkpoints again."""
    with torch.device("meta"):
        network = Blocks(forward)
    return A.modelled(network, with_recomputation()).profile()


class Profiles(NamedTuple):
    """One profile for each of the five programs."""

    a: Profile
    b: Profile
    c: Profile
    d: Profile
    e: Profile


@lru_cache(maxsize=16)
def captured(program: BrokenProgram) -> ModelledModule:
    """Capture a program as it is, once."""
    return program.modelled()


@engine.needs_the_model
def profile_all() -> Profiles:
    """Return the profiles of the five programs as they are."""
    return Profiles(*(captured(program).profile() for program in PROGRAMS))
