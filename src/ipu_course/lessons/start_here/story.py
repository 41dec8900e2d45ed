"""The story of the course in one figure: what five lessons do to the seconds of an epoch."""

from __future__ import annotations

from matplotlib.figure import Figure

from ipu_course import figures, ladder, show

TAKEAWAY = "Five lessons, one change each: from a program that does not fit to an epoch in under nine seconds."


def show_story() -> None:
    """Show the workshop's epochs, step by step, with the lesson that takes each step."""
    show.figure(story_figure(), TAKEAWAY, story_description())


def story_figure() -> Figure:
    """Return one bar for each step of the ladder, in seconds an epoch on hardware."""
    steps = ladder.published_ladder().steps
    return figures.bars_figure(
        _labels(),
        {"hardware": [step.epoch_seconds for step in steps]},
        "seconds an epoch, derived from the published calls per second",
        "ResNet-101 on CIFAR-10 over two IPUs",
        form="{:.1f} s",
        missing="does not fit into memory",
    )


def story_description() -> str:
    """Return the figure in words."""
    steps = ladder.published_ladder().steps
    told = (
        f"{label} {'does not fit' if step.epoch_seconds is None else f'{step.epoch_seconds:.1f} s'}"
        for label, step in zip(_labels(), steps)
    )
    return f"Seconds an epoch on two IPUs, derived from published calls per second: {'; '.join(told)}."


def _labels() -> list[str]:
    """The steps' names; the first is where everybody starts, and each further one belongs to the next lesson."""
    names = [step.name for step in ladder.published_ladder().steps]
    return [f"start: {names[0]}", *(f"lesson {number:02d}: {name}" for number, name in enumerate(names[1:], start=1))]
