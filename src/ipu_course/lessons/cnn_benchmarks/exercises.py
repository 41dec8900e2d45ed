"""The exercises on benchmarks: measure honestly, set a published row's options, keep a budget, read a page closely."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import torch
from torch import Tensor

import poptorch
from ipu_course import engine
from ipu_course.exercises import Exercise, as_number
from ipu_course.lessons.cnn_benchmarks.explorer import BATCHES, BUDGET_MS, EIGHT_BITS, RESNET50, benchmark_result
from ipu_course.programs.bench.module import benchmark_module, example_micro_batch
from ipu_course.published import published_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.programs.bench import Result

Benchmark = Callable[[Callable[[Tensor], Any], Iterable[Tensor], Callable[[], float]], float]
"""Takes a call that runs one batch, a loader of batches, and a clock in seconds; returns images a second."""

NEAR_RATE = 1e-6  # the simulated clock is exact

IPUS = 4

LINES = range(1, 9)
UNDER_WRONG_HEADING = {5, 6}
MODIFIED = {7, 8}
ODD_LINE = 5


@dataclass
class SimulatedRun:
    """A machine with a loader and a clock of its own: five uneven batches, the last one smaller, the first call slow.

    All times are in seconds. They are not those of any hardware: they are chosen so that every mistake gives a rate
    of its own.
    """

    images: tuple[int, ...] = (16, 16, 16, 16, 8)
    loading: tuple[float, ...] = (0.020, 0.004, 0.006, 0.040, 0.005)
    calling: tuple[float, ...] = (0.021, 0.020, 0.034, 0.022, 0.013)
    compiling: float = 30.0
    now: float = 1000.0
    calls: list[int] = field(default_factory=list)
    clock_reads: int = 0

    def __iter__(self) -> Iterator[Tensor]:
        for number, (images, seconds) in enumerate(zip(self.images, self.loading)):
            self.now += seconds
            yield torch.full((images, 1), float(number))

    def __len__(self) -> int:
        return len(self.images)

    def call(self, batch: Tensor) -> Tensor:
        """Run a batch that came from this loader; the first call compiles as well."""
        number = int(batch[0])
        self.now += self.calling[number] + (0.0 if self.calls else self.compiling)
        self.calls.append(number)
        return batch

    def clock(self) -> float:
        """Return the simulated time."""
        self.clock_reads += 1
        return self.now


def after_the_first(call: Callable[[Tensor], Any], loader: Iterable[Tensor], clock: Callable[[], float]) -> float:
    """Return the images a second of all batches but the first, loading included."""
    batches = iter(loader)
    call(next(batches))
    start, images = clock(), 0
    for batch in batches:
        call(batch)
        images += len(batch)
    return images / (clock() - start)


def _all_again(call: Callable[[Tensor], Any], loader: Iterable[Tensor], clock: Callable[[], float]) -> float:
    """Warm up with the first batch, and then measure the whole loader."""
    call(next(iter(loader)))
    start, images = clock(), 0
    for batch in loader:
        call(batch)
        images += len(batch)
    return images / (clock() - start)


@dataclass(frozen=True)
class _Timed:
    """What happened to one batch: its images, and the seconds of loading and calling, compilation included."""

    images: int
    loading: float
    calling: float

    @property
    def seconds(self) -> float:
        return self.loading + self.calling

    @property
    def rate(self) -> float:
        return self.images / self.seconds


def _timed() -> list[_Timed]:
    run = SimulatedRun()
    calling = [seconds + (0.0 if number else run.compiling) for number, seconds in enumerate(run.calling)]
    return [_Timed(*each) for each in zip(run.images, run.loading, calling)]


def mistaken_rates() -> dict[float, str]:
    """Return the rates that known misunderstandings give on ``SimulatedRun``, with their hints."""
    everything = _timed()
    later = everything[1:]
    seconds = sum(each.seconds for each in later)
    calling = sum(each.calling for each in later)
    images = sum(each.images for each in later)
    rates = [each.images / each.calling for each in later]
    compiles = "The first call compiles the program, and your rate includes it."
    average = (
        "You averaged the rates of single batches, but a slow batch takes a larger share of the time than it has in "
        "the average. Divide all images by all seconds."
    )
    return {
        (images + everything[0].images) / (seconds + everything[0].seconds): f"{compiles} Start the clock after it.",
        images / calling: "You timed the calls only. In a real run the loader takes time, too, so read the clock "
        "once before the loop and once after it, and let the loop load the batches.",
        sum(rates) / len(rates): "You averaged the rates of the calls alone. That leaves out the time that loading "
        "takes, and it counts a slow call no more than a fast one: divide all images by all seconds.",
        sum(each.rate for each in later) / len(later): average,
        sum(each.rate for each in everything) / len(everything): f"{compiles} {average}",
        len(later) / seconds: "That is batches a second. Count the images of each batch: len(batch).",
        len(later) * everything[0].images / seconds: "You counted every batch as a full one, but the last one is "
        "smaller: add up len(batch).",
        (images + everything[0].images) / seconds: "You counted the images of the first batch, but not its time.",
        seconds / images: "That is seconds for an image. Divide the other way round.",
    }  # fmt: skip


def measure_hint(images_per_second: object) -> str | None:
    """Return the hint for a function that is to measure the rate of a long run on ``SimulatedRun``."""
    if not callable(images_per_second):
        return f"images_per_second is a function; you wrote {images_per_second!r}."
    run = SimulatedRun()
    found = as_number(images_per_second(run.call, run, run.clock))
    if found is None:
        return "images_per_second returns a number: images divided by seconds."
    if not run.clock_reads:
        return "Read the time with clock(), because the check passes its own clock."
    missing = len(run) - len(set(run.calls))
    if missing:
        return f"{missing} of the loader's {len(run)} batches never ran. Call all of them."
    if any(_near(found, _rate(right)) for right in (after_the_first, _all_again)):
        return None
    for rate, hint in mistaken_rates().items():
        if _near(found, rate):
            return hint
    return (
        f"The simulated run loads and computes {_rate(after_the_first):,.0f} images a second after its first call, and "
        f"you returned {found:,.4g}. Start the clock when the first call is done, stop it after the last one, and "
        "count the images in between."
    )


def _rate(benchmark: Benchmark) -> float:
    run = SimulatedRun()
    return benchmark(run.call, run, run.clock)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=NEAR_RATE)


def options_hint(published_options: Any, using: Result) -> str | None:
    """Return the hint for options that are to bring a program to its published rate; ``using`` is that program."""
    if not callable(published_options):
        return f"published_options is a function that returns the options; you wrote {published_options!r}."
    options = published_options()
    if not isinstance(options, poptorch.Options):
        return f"published_options returns poptorch.Options; yours returned {options!r}. Is there a return at the end?"
    if options.replication_factor != 1:
        return f"The card has one IPU, and {options.replication_factor} replicas would need as many IPUs."
    settings = using.settings
    program = engine.modelled_module(benchmark_module(settings, "meta"), example_micro_batch(settings), options)
    profile = program.profile(machine=settings.machine)
    rate = _images_per_second(profile)
    without_sending = _images_per_second(program.profile(machine=settings.machine, synthetic_data=True))
    told = f"The model says {rate:,.0f} images a second."
    if without_sending > 1.01 * rate:
        return (
            f"{told} Your program sends its images over the host link, and the published one makes its data on the "
            "IPU. Which option of Options does that?"
        )
    if options.device_iterations != settings.device_iterations:
        return (
            f"{told} The published program runs {settings.device_iterations} batches in each call, and yours "
            f"{options.device_iterations}: the cost of a call is shared by fewer batches."
        )
    published = published_figure(Path(__file__).parent, "c600_64").value
    if rate < published / using.profile.error_band.high:
        return (
            f"{told} The published program sums inside its matrix products in half precision. The option for this "
            "is in options.Precision."
        )
    return None


def _images_per_second(profile: Profile) -> float:
    return profile.samples_per_call / profile.call_seconds


def budget_hint(largest: object, safe: object, using: Result) -> str | None:
    """Return the hint for the largest batches within the budget: as modelled, and at the slow end of the error band.

    ``using`` is any modelled result; the latencies are those of the explorer.
    """
    return _batch_hint("largest", largest, modelled_ms) or _batch_hint("safe", safe, slow_ms)


def modelled_ms(batch: int) -> float:
    """Return the modelled latency of a batch of ResNet-50 on each of four IPUs, 8-bit images sent."""
    return 1e3 * (benchmark_result(RESNET50, batch, EIGHT_BITS, IPUS).latency_seconds or 0.0)


def slow_ms(batch: int) -> float:
    """Return the same latency at the end of that batch's error band."""
    return modelled_ms(batch) * benchmark_result(RESNET50, batch, EIGHT_BITS, IPUS).profile.error_band.high


def largest_within(latency: Callable[[int], float]) -> int:
    """Return the slider's largest batch whose ``latency`` is within the budget."""
    return max(batch for batch in BATCHES if latency(batch) <= BUDGET_MS)


def _batch_hint(name: str, answer: object, latency: Callable[[int], float]) -> str | None:
    number = as_number(answer)
    if number is None or not number.is_integer():
        return f"{name} is a batch size, so a whole number; you wrote {answer!r}."
    batch = int(number)
    if batch not in BATCHES:
        return f"{name}: the slider has no batch of {batch}. Choose among {', '.join(map(str, BATCHES))}."
    taken = latency(batch)
    said = f"{name}: a batch of {batch} takes {taken:.2f} ms" + (
        " at the end of the error band" if latency is slow_ms else ""
    )
    if taken > BUDGET_MS:
        return f"{said}, which is more than {BUDGET_MS:g} ms."
    if batch < largest_within(latency):
        return f"{said}. A larger batch on the slider still keeps the budget."
    return None


def lines_hint(contradicting: object, odd_line: object) -> str | None:
    """Return the hint for the lines that contradict their heading, and for the one with another global batch."""
    return _contradicting_hint(contradicting) or _odd_line_hint(odd_line)


def _contradicting_hint(answer: object) -> str | None:
    if not isinstance(answer, (list, tuple, set, frozenset)):
        return f"contradicting is a list of line numbers, such as [1, 2]; you wrote {answer!r}."
    numbers = [as_number(line) for line in answer]
    strange = [line for line, number in zip(answer, numbers) if number not in LINES]
    if strange:
        return f"There is no line {strange[0]!r}: the table numbers its lines from 1 to {len(LINES)}."
    lines = set(numbers)
    if lines == UNDER_WRONG_HEADING:
        return None
    if lines & MODIFIED:
        return (
            "The Modified lines print --group-dim 16 below the heading Group Dim 16, so they agree with it. Which "
            "heading says something else?"
        )
    if lines and lines < UNDER_WRONG_HEADING:
        return "That is one of them. Look at the second line below the same heading, too."
    if lines:
        return (
            "The headings of lines 1 to 4 say nothing about groups, and the lines print none, so they do not "
            "contradict each other."
        )
    return "There are contradictions: compare the Group Dim of each heading with the column --group-dim."


def _odd_line_hint(answer: object) -> str | None:
    number = as_number(answer)
    if number is None or not number.is_integer():
        return f"odd_line is the number of one line; you wrote {answer!r}."
    if number == ODD_LINE:
        return None
    found = {
        7: "Line 7 has the largest accumulation of its network but only one replica: 5 x 160 x 1 = 800 images, like "
        "most lines of this network.",
        6: "Line 6 has 4 replicas: 5 x 40 x 4 = 800 images, like most lines of this network.",
        8: "Line 8 has 4 replicas: 5 x 40 x 4 = 800 images, like most lines of this network.",
        1: "16,384 images are many, but both lines of ResNet-50 have as many.",
        2: "16,384 images are many, but both lines of ResNet-50 have as many.",
    }
    return "The contradicting lines are right. " + found.get(
        int(number), "The global batch is batch size x accumulation x replicas: compare it within each network."
    )


MEASURE = Exercise(
    names=("images_per_second",),
    find_hint=measure_hint,
    praise="You left out the compilation, counted the loading and every image, and divided once at the end.",
)
OPTIONS = Exercise(
    names=("published_options",),
    find_hint=options_hint,
    praise="With these three options the modelled rate is within 1 % of the published one. Without any one of them it "
    "is too low.",
)
BUDGET = Exercise(
    names=("largest", "safe"),
    find_hint=budget_hint,
    praise="The next batch misses two milliseconds by less than the model's error: too close to call. If somebody "
    "relies on the budget, take the smaller batch, and measure it.",
)
LINES_OF_THE_PAGE = Exercise(
    names=("contradicting", "odd_line"),
    find_hint=lines_hint,
    praise="Both Standard lines print the modified network's options, and line 5 trains with a global batch of 200.",
)
