"""What lesson 01 shows: whether its programs fit, the rates of the IPUs alone, losses, and the paths of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.half_precision.trial import Trial

KIB = 1024
UPDATES_BETWEEN_MARKS = 10

Named = Mapping[str, "Profile"]


def show_fit(profiles: Named) -> None:
    """Show the fullest tile of each program against the limit."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    show.table([fit_row(name, profile) for name, profile in profiles.items()], index="precision")


def fit_row(name: str, profile: Profile) -> dict[str, object]:
    """Return the row of one program: its fullest tile, what a tile has, and the verdict."""
    memory = profile.memory
    return {
        "precision": name,
        "fullest tile": f"{memory.max_tile_bytes / KIB:.0f} KiB",
        "a tile has": f"{memory.tile_bytes / KIB:.0f} KiB",
        "fits (modelled)": engine.fits_in_a_word(profile),
    }


def show_rates(profiles: Named, takeaway: str) -> None:
    """Show the images per second of the IPUs alone, without the host, for each program."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    rates = [profile.device_samples_per_second for profile in profiles.values()]
    drawn = figures.bars_figure(
        list(profiles), {"rate": rates}, "images per second", "ResNet-101, the IPUs alone (modelled)", form="{:,.0f}"
    )
    told = "; ".join(f"{name} {rate:,.0f}" for name, rate in zip(profiles, rates))
    show.figure(drawn, takeaway, f"Images per second of the two IPUs, without the host, modelled: {told}.")


def show_losses(trials: Mapping[str, Trial], takeaway: str) -> None:
    """Show the loss of each epoch, for up to three runs."""
    curves = {name: trial.losses for name, trial in trials.items()}
    epochs = range(1, max(len(losses) for losses in curves.values()) + 1)
    title = "Digits, with the loss divided by 262,144"
    drawn = figures.curves_figure(epochs, curves, "epoch", "mean cross-entropy", title, from_zero=True)
    told = "; ".join(f"{name} from {losses[0]:.1f} to {losses[-1]:.1f}" for name, losses in curves.items())
    show.figure(drawn, takeaway, f"Loss by epoch, one line for each run: {told}.")


def show_paths(paths: Mapping[str, Sequence[float]], takeaway: str) -> None:
    """Show the mean of weights before the first and after each update, for up to three ways of rounding."""
    updates = range(0, max(len(path) for path in paths.values()), UPDATES_BETWEEN_MARKS)
    curves = {name: [path[update] for update in updates] for name, path in paths.items()}
    drawn = figures.curves_figure(
        updates, curves, "updates of 0.0001", "mean of 1,000 weights", "Updates that are smaller than half a step"
    )
    told = "; ".join(f"{name} {path[-1]:.2f}" for name, path in paths.items())
    show.figure(drawn, takeaway, f"Mean of the weights against the updates, for each rounding. At the end: {told}.")
