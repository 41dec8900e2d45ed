"""The comparison as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipu_model.predict.calibration import constant_facts, fitted
from ipu_model.validate.comparison import Compared
from ipu_model.validate.leave_one_out import LeftOut

_WIDTH = 74


def comparison_text(compared: Sequence[Compared]) -> str:
    """Return one line for each row: published, modelled, signed error, and whether it was fitted."""
    lines = [
        "Published on hardware against the IPU Model",
        "",
        f"{'row':{_WIDTH}} {'published':>13} {'modelled':>13} {'error':>8} {'wanted':>7}",
    ]
    for each in compared:
        row = each.row
        mark = "fitted" if row.is_fitted else ("" if each.as_wanted else "outside")
        what = f"{row.what} [{row.unit}]"
        lines.append(
            f"{what:{_WIDTH}} {_number(row.value):>13} {_number(each.modelled):>13} {each.error:>+8.1%} "
            f"{row.wanted:>7.0%} {mark}".rstrip()
        )
    return "\n".join([*lines, "", *_summary(compared)])


def _summary(compared: Sequence[Compared]) -> list[str]:
    free = [each for each in compared if not each.row.is_fitted]
    inside = sum(each.as_wanted for each in free)
    sources = sorted({each.row.source for each in compared})
    lines = [f"{len(compared) - len(free)} rows settled a constant (fitted); the other {len(free)} are predictions."]
    if free:
        worst = max(free, key=lambda each: abs(each.error))
        lines.append(
            f"Of the predictions, {inside} are as near as wanted; largest error {worst.error:+.1%} ({worst.row.what})."
        )
    return [*lines, f"Fitted constants: {', '.join(fitted())}.", "Sources:", *(f"  {source}" for source in sources)]


def comparison_markdown(compared: Sequence[Compared]) -> str:
    """Return the comparison as a page of its own."""
    lines = [
        "# Published on hardware against the IPU Model",
        "",
        "Written by `make docs` from `python -m ipu_model validate`; a test fails when an error grows. Rows marked "
        "*fitted* settled a constant of the model and are no predictions; the others are. How to read them: "
        "[model.md](model.md).",
        "",
        "| row | unit | published | modelled | error | wanted | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for each in compared:
        row = each.row
        lines.append(
            f"| {row.what} | {row.unit} | {_number(row.value)} | {_number(each.modelled)} | {each.error:+.1%} | "
            f"{row.wanted:.0%} | {'fitted' if row.is_fitted else ''} |"
        )
    free = [each for each in compared if not each.row.is_fitted]
    sources = sorted({each.row.source for each in compared})
    return "\n".join(
        [
            *lines, "",
            f"{len(compared) - len(free)} rows settled constants, {len(free)} are predictions, "
            f"{sum(each.as_wanted for each in free)} of them as near as wanted. {len(fitted())} constants are fitted: "
            f"{', '.join(f'`{name}`' for name in fitted())}. `python -m ipu_model validate --constants` lists all "
            "constants with their sources, `--leave-one-out` refits them without each row.",
            "", "Sources:", "", *(f"* {source}" for source in sources), "",
        ]
    )  # fmt: skip


def constants_text() -> str:
    """Return every calibrated constant with its value, unit, confidence and source."""
    lines = []
    for section, facts in constant_facts().items():
        for name, fact in facts.items():
            lines += [f"{section}.{name} = {fact.value:g} {fact.unit} ({fact.confidence})", f"    {fact.source}"]
    return "\n".join(lines)


def left_out_text(found: Iterable[LeftOut]) -> str:
    """Return one line for each fitted row: its error with all rows, and with the constants refitted without it."""
    lines = [
        "Leave one out: constants refitted to the other fitted rows",
        "",
        f"{'row':{_WIDTH}} {'error':>8} {'left out':>9}",
    ]
    for each in found:
        without = "no other row" if each.without is None else f"{each.without:+.1%}"
        lines.append(f"{each.row.what:{_WIDTH}} {each.with_all:>+8.1%} {without:>9}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
