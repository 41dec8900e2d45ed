"""The report of the capstone: the plan, its ladder and profile, and the learner's reason for each decision."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

from ipu_course.exercises import open_parts
from ipu_course.lesson import is_learners_copy
from ipu_course.lessons.capstone.budget import KIB, ladder_row
from ipu_course.lessons.capstone.exercises import reasons_hint
from ipu_course.lessons.capstone.prices import plan_in_words
from ipu_course.lessons.capstone.reasons import DECIDED
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.progress.store import progress_file
from ipu_course.whole_files import write_whole

if TYPE_CHECKING:
    from ipu_course.lessons.capstone.budget import Budget, Compilation

FILE_NAME = "capstone_report.md"


def report_text(budget: Budget, reasons: Mapping[str, str], functions: Mapping[str, Callable[..., Any]]) -> str:
    """Return the report in Markdown; ``functions`` are what the learner wrote, by name.

    Of the plans, it has the code of the best one that was compiled, which need not be the last.
    """
    parts = ["# Capstone report", *_program(budget), "## Decisions"]
    parts += [f"**{title}.** {str(reasons[name]).strip()}" for name, title in DECIDED.items()]
    parts.append("## Code")
    best = None if budget is NOT_MODELLED else budget.best
    if best is not None and best.plan is not None and "plan" in functions:
        functions = {**functions, "plan": best.plan}
        parts.append(f"The plan is that of compilation {best.number}.")
    parts += [f"```python\n{_source(function)}\n```" for function in functions.values()]
    return "\n\n".join(parts) + "\n"


def _program(budget: Budget) -> list[str]:
    if budget is NOT_MODELLED:
        return ["There was no IPU Model, so this report has no modelled figures."]
    size, best = budget.size, budget.best
    head = (
        f"BERT-{size.name}: {size.layers} layers of {size.width}, {size.global_batch:,} sequences in an update, on "
        "four IPUs of a Bow-2000. All figures are modelled."
    )
    rungs = [ladder_row(each, budget) for each in budget.used]
    ladder = ["## Ladder", _table(rungs), budget.record.in_words] if rungs else []
    if best is None:
        return [head, *ladder, "No plan fits with 5 % of every tile free yet."]
    return [head, *_best(best, budget), *ladder]


def _best(best: Compilation, budget: Budget) -> list[str]:
    share = best.sequences_per_second / budget.every.best.sequences_per_second
    profile = best.profile
    fullest = max(profile.memory, key=lambda ipu: ipu.max_tile_bytes)
    held = sorted(fullest.bytes_by_category.items(), key=lambda item: -item[1])[:6]
    times = sorted(profile.shares.items(), key=lambda item: -item[1])
    return [
        f"**Result.** {best.sequences_per_second:,.0f} sequences/s, {share:.0%} of the best of "
        f"{len(budget.every.results)} plans, in compilation {best.number} of {budget.compilations}. The fullest tile "
        f"holds {max(best.tile_kib):,.0f} KiB, and the program is limited by {profile.limited_by}.",
        f"The best plan: {plan_in_words(budget.every.best.plan)}.",
        "## Profile",
        _table([{"fullest tile": name, "KiB": f"{size / KIB:,.0f}"} for name, size in held]),
        _table([{"device time": name, "share": f"{part:.1%}"} for name, part in times if part >= 0.001]),
    ]


def _table(rows: list[dict[str, object]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function).rstrip()
    except (OSError, TypeError):
        return f"# the source of {getattr(function, '__name__', 'this function')} is not known"


def write_report(budget: Budget, reasons: Any, **functions: Any) -> None:
    """Write the report, once all reasons are there, and print how it begins.

    It goes to the folder of the learner's copy, or beside the progress file where the notebook is none.
    """
    unwritten = [name for name, each in functions.items() if not callable(each) or open_parts(name, each)]
    if unwritten or open_parts("reasons", reasons):
        print("The report waits for your reasons and your functions.")
        return
    hint = reasons_hint(reasons)
    if hint is not None:
        print(f"The report waits: {hint}")
        return
    text = report_text(budget, reasons, functions)
    try:
        folder = Path.cwd() if is_learners_copy() else progress_file().parent
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE_NAME, text)
        where = "in the folder of this notebook" if is_learners_copy() else "beside your progress file"
        print(f"Written: {FILE_NAME}, {where}. It has {len(text.split()):,} words and begins:")
    except (OSError, RuntimeError) as problem:
        print(f"The report could not be written ({type(problem).__name__}). It begins:")
    print("\n".join(text.splitlines()[:7]))
