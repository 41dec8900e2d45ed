"""Write the generated pages of docs/, the tables of lessons, the pictures, what needs the project's address.

`make docs` calls it.
"""

from __future__ import annotations

from pathlib import Path

import address_blocks
import engine_drawing
import guide_sections
import lesson_tables
from benchmark_page import BENCHMARKS_PAGE, benchmark_page_text
from matplotlib.figure import Figure

from ipu_course import figures
from ipu_course.figures.floor_and_hill import hills_beside
from ipu_course.ladder import climb
from ipu_course.programs.bench import page_results
from ipu_course.schedule import pipelined
from ipu_course.tile_over_time import hill_of
from poptorch._backend import support
from published.comparison import compare_rows
from published.text import comparison_markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"
SUPPORT_PAGE = DOCS / "support.md"
VALIDATION_PAGE = DOCS / "validation.md"
ENGINE_PAGE = DOCS / "engine.md"
SCHEDULE = DOCS / "pipeline_schedule.png"
DOES_IT_FIT = DOCS / "does_it_fit.png"


def main() -> None:
    """Write all of them."""
    DOCS.mkdir(exist_ok=True)
    lesson_tables.main()
    guide_sections.main()
    address_blocks.main()
    SUPPORT_PAGE.write_text(support.as_markdown(), encoding="utf-8")
    VALIDATION_PAGE.write_text(comparison_markdown(compare_rows()), encoding="utf-8")
    BENCHMARKS_PAGE.write_text(benchmark_page_text(page_results()), encoding="utf-8")
    _write_engine_drawing()
    schedule = pipelined(stages=4, micro_batches=10)
    picture = figures.schedule(schedule, title="One weight update: 4 IPUs, 10 micro-batches")
    SCHEDULE.write_bytes(figures.png(picture.figure))
    DOES_IT_FIT.write_bytes(figures.png(does_it_fit()))
    written = (SUPPORT_PAGE, VALIDATION_PAGE, BENCHMARKS_PAGE, ENGINE_PAGE, SCHEDULE, DOES_IT_FIT)
    print(f"wrote {', '.join(page.name for page in written)}")


def _write_engine_drawing() -> None:
    drawing = engine_drawing.read_drawing()
    page = ENGINE_PAGE.read_text(encoding="utf-8")
    ENGINE_PAGE.write_text(engine_drawing.with_drawing(page, drawing), encoding="utf-8")
    (DOCS / engine_drawing.PICTURE_NAME).write_bytes(figures.png(engine_drawing.draw(drawing)))


def does_it_fit() -> Figure:
    """Return the fullest tile of the first IPU in the ladder's first two steps, in 32-bit and in half precision."""
    single, half = (hill_of(step.profile) for step in climb(("base, 32-bit", "half precision")))
    figure = hills_beside({"32-bit: does not fit": single, "half precision: fits": half})
    figure.suptitle("ResNet-101 in training over two IPUs: the fullest tile of the first")
    return figure


if __name__ == "__main__":
    main()
