"""docs/benchmarks.md: each command line of the benchmark page, its counterpart and its modelled result."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from ipu_course.programs.bench.page import Configuration, Page, benchmark_page
from ipu_course.programs.bench.report import rows
from ipu_course.programs.bench.results import Result

BENCHMARKS_PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
HEAD = """# CNN benchmarks

`make docs` writes this page from `data/cnn_benchmarks.json` and the IPU Model, and a test compares them. The command
lines are those of {source}.

Every figure here is **modelled**. None is measured, and the benchmark page does not publish any.

* **images/s**: the throughput over all steps except the first, which the benchmark page leaves out, too. A step is one
  call.
* **error band**: how far the hardware's throughput may differ, according to the comparison with published results
  ([validation.md](validation.md)).
* **latency ms** (inference): the time from the call to its result, for a call of one batch on every replica.
* **KiB on a tile**: the memory used on the fullest tile, of {limit:.0f} KiB. **fits**: "close" means too close to call.
  The throughput of a program that does not fit is in brackets.
* **loader MB/s**: how much image data the host has to deliver per second so that the IPUs never wait. The host's own
  time is not modelled."""
NUMBERS = ("batch", "IPUs", "images/s", "error band", "latency ms", "KiB on a tile", "loader MB/s")


def benchmark_page_text(results: Sequence[Result]) -> str:
    """The page as Markdown; ``results`` are those of all its command lines and batch sizes."""
    parts = [
        HEAD.format(source=benchmark_page().source, limit=results[0].tile_limit_kib),
        "## Training",
        results_table([result for result in results if result.settings.training]),
        "## Inference",
        results_table([result for result in results if not result.settings.training]),
        explanations(),
    ]
    return "\n\n".join(parts) + "\n"


def explanations() -> str:
    """The parts of the page that do not hold modelled figures."""
    page = benchmark_page()
    parts = [
        "## The command lines",
        *[_command_line(number, each) for number, each in enumerate(page.configurations, start=1)],
        "## What the page leaves open",
        _open_points(page),
        "## The page's options in PopTorch",
        _options(page),
    ]
    return "\n\n".join(parts)


def results_table(results: Sequence[Result]) -> str:
    """A line for each result."""
    lines = rows(results)
    return _table([{**line, "configuration": f"`{line['configuration']}`"} for line in lines])


def _command_line(number: int, of: Configuration) -> str:
    lines = [f"### {number}. {of.heading}", f"```\n{of.command_line}\n```", f"Counterpart: `{_counterpart(of)}`"]
    lines += [f"Note: {note}" for note in of.deviations]
    return "\n\n".join(lines)


def _counterpart(of: Configuration) -> str:
    return f"python -m ipu_course bench --config {of.name}{' --sweep' if of.batch_sizes else ''}"


def _open_points(page: Page) -> str:
    return _table([{"left open": each.what, "chosen": each.chosen, "reason": each.reason} for each in page.open_points])


def _options(page: Page) -> str:
    return _table(
        [
            {
                "option of the page": f"`{each.option}`",
                "here": f"`{each.bench}`" if each.bench else "-",
                "PopTorch": each.poptorch,
                "remark": each.remark,
            }
            for each in page.options
        ]
    )


def _table(lines: Sequence[dict[str, object]]) -> str:
    heads = list(lines[0])
    rule = ("---:" if head in NUMBERS else "---" for head in heads)
    return "\n".join([_line(heads), _line(rule), *(_line(line[head] for head in heads) for line in lines)])


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
