"""The page of a search for what fits: what was found, its code, and memory against throughput of all that was tried."""

from __future__ import annotations

from ipu_model.explore.fit_result import FitResult
from ipu_model.report.fit_parts import (
    VERDICT_CLASSES,
    described_picture,
    found_programs,
    frontier_picture,
    numbers_of,
    tried_table,
)
from ipu_model.report.page import rendered


def fit_html(result: FitResult) -> str:
    """Return the result of `make_it_fit` as one page that needs nothing else."""
    start = result.start
    return rendered(
        "fit.html",
        title=f"What makes {result.name} fit",
        start=f"{start.verdict}: {numbers_of(start)}",
        start_class=VERDICT_CLASSES[start.verdict],
        found=tuple(found_programs(result)),
        result=result,
        picture=frontier_picture(result),
        described=described_picture(result),
        table=tried_table(result),
    )
