"""The story of the course in one figure: where it begins and ends, and the steps that learners will predict."""

from __future__ import annotations

from matplotlib.figure import Figure

from ipu_course import figures, ladder, show

TAKEAWAY = (
    "Write down which lesson you think saves the most seconds. The ladder at the end of lesson 05 has the answer."
)
DOES_NOT_FIT, OPEN = "does not fit into memory", "? (you will find out)"


def show_story() -> None:
    """Show the seconds of the workshop's first and last epoch, and the steps between them without theirs."""
    show.figure(story_figure(), TAKEAWAY, story_description())


def story_figure() -> Figure:
    """Return one row for each step of the ladder; only the first and the last epoch show their seconds on hardware."""
    told = _told_seconds()
    drawn = figures.bars_figure(
        list(told),
        {"hardware": [seconds if isinstance(seconds, float) else None for seconds in told.values()]},
        "seconds per epoch, derived from the published calls per second",
        "ResNet-101 on CIFAR-10 over two IPUs",
    )
    for text, seconds in zip(drawn.axes[0].texts, told.values()):
        text.set_text(_words(seconds))
    return drawn


def story_description() -> str:
    """Return the figure in words."""
    told = "; ".join(f"{label}: {_words(seconds)}" for label, seconds in _told_seconds().items())
    return f"Seconds per epoch on two IPUs, derived from published calls per second. {told}."


def _told_seconds() -> dict[str, float | str]:
    """Return the seconds of the first and the last epoch by the step's label, and words for all other steps.

    The first step is where everybody starts, and each further one belongs to the next lesson.
    """
    steps = ladder.published_ladder().steps
    fitting = [step.name for step in steps if step.fits]
    told: dict[str, float | str] = {}
    for number, step in enumerate(steps):
        label = f"lesson {number:02d}: {step.name}" if number else f"start: {step.name}"
        shown = step.name in (fitting[0], fitting[-1])
        told[label] = (step.epoch_seconds or 0.0) if shown else OPEN if step.fits else DOES_NOT_FIT
    return told


def _words(seconds: float | str) -> str:
    return seconds if isinstance(seconds, str) else f"{seconds:.1f} s"
