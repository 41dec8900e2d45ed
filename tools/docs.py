"""Write the generated pages of docs/, the tables of lessons, the README's picture, what needs the project's address.

`make docs` calls it.
"""

from __future__ import annotations

from pathlib import Path

import address_blocks
import guide_sections
import lesson_tables
from benchmark_page import BENCHMARKS_PAGE, benchmark_page_text

from ipu_course import figures
from ipu_course.programs.bench import page_results
from ipu_course.schedule import pipelined
from ipu_model.validate.comparison import compare_rows
from ipu_model.validate.text import comparison_markdown
from poptorch._backend import support

DOCS = Path(__file__).resolve().parent.parent / "docs"
SUPPORT_PAGE = DOCS / "support.md"
VALIDATION_PAGE = DOCS / "validation.md"
PICTURE = DOCS / "pipeline_schedule.png"


def main() -> None:
    """Write all of them."""
    DOCS.mkdir(exist_ok=True)
    lesson_tables.main()
    guide_sections.main()
    address_blocks.main()
    SUPPORT_PAGE.write_text(support.as_markdown(), encoding="utf-8")
    VALIDATION_PAGE.write_text(comparison_markdown(compare_rows()), encoding="utf-8")
    BENCHMARKS_PAGE.write_text(benchmark_page_text(page_results()), encoding="utf-8")
    schedule = pipelined(stages=4, micro_batches=10)
    picture = figures.schedule(schedule, title="One weight update: 4 IPUs, 10 micro-batches")
    PICTURE.write_bytes(figures.png(picture.figure))
    print(f"wrote {', '.join(page.name for page in (SUPPORT_PAGE, VALIDATION_PAGE, BENCHMARKS_PAGE, PICTURE))}")


if __name__ == "__main__":
    main()
