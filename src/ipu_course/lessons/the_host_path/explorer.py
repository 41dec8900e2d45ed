"""Lesson 15's explorer: host, link and IPU for each prefetch depth, number of I/O tiles and kind of results."""

from __future__ import annotations

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.lessons.the_host_path.land_cover import (
    BYTES,
    NUMBERS,
    SCORES,
    TILE_BYTES,
    HostPath,
    profile_path,
    step_milliseconds,
    step_parts,
)
from ipu_course.lessons.the_host_path.step_lanes import describe_lanes, lanes_figure

DEPTHS, TILES = (1, 3), (0, 32, 64, 128, 192)
RETURNED = {"all scores (fp16)": SCORES, "class numbers (int32)": NUMBERS, "class bytes (uint8)": BYTES}


def path_view(_: object, depth: int, io_tiles: int, results: str) -> View:
    """Show the lanes of a setting, its step and its fullest tile."""
    path = HostPath(depth, io_tiles, results)
    profile = profile_path(path)
    fullest = f"{profile.memory.max_tile_bytes / 1024:.0f} of {TILE_BYTES // 1024} KiB"
    row = {
        "step": f"{step_milliseconds(profile):.2f} ms",
        "the IPU computes": f"{step_parts(path).computing / step_milliseconds(profile):.0%}",
        "fullest tile": fullest,
        "fits": engine.fits_in_a_word(profile),
    }
    if not engine.may_run(profile):
        return View(text=f"This program does not fit: {io_tiles} I/O tiles are too few, and one of them would have to "
                    f"hold {fullest}.", rows=[row])  # fmt: skip
    return View(
        lanes_figure(path),
        takeaway=f"A step takes {step_milliseconds(profile):.2f} ms (modelled, mean of a call).",
        description=describe_lanes(path),
        rows=[row],
    )


PATHS = Explorer(
    controls={
        "depth": Slider("prefetch depth", DEPTHS, 1),
        "io_tiles": Slider("I/O tiles (0: no overlap)", TILES, 0),
        "results": Choice("results", RETURNED, SCORES),
    },
    view=path_view,
)
