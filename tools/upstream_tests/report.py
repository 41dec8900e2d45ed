"""Format what the tool prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from upstream_tests.expected import Comparison
from upstream_tests.outcomes import Kind, Outcome


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many tests passed, of those that ran, and why the others did not."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    ran = kinds[Kind.PASSED] + kinds[Kind.FAILED]
    share = f" ({kinds[Kind.PASSED] / ran:.1%})" if ran else ""
    reasons = Counter(outcome.line for outcome in outcomes if outcome.kind is Kind.LEFT_OUT)
    lines = [f"{kinds[Kind.PASSED]} of {ran} tests pass{share}."]
    lines += [f"{count} left out: {reason}." for reason, count in reasons.most_common()]
    if kinds[Kind.SKIPPED]:
        lines.append(f"{kinds[Kind.SKIPPED]} skipped by themselves.")
    return "\n".join(lines)


def sections(comparison: Comparison) -> str:
    """Return every difference from the list, a section for each kind."""
    return "\n\n".join(
        f"{len(lines)} {title}:\n" + "\n".join(lines)
        for title, lines in (
            ("new failures", [f"  {o.test}\n      {o.line}" for o in comparison.new]),
            ("listed as failing, but passing", [f"  {e.test}" for e in comparison.passing]),
            ("listed without a reason", [f"  {e.test}\n      {e.failure}" for e in comparison.without_reason]),
            ("failing with other words than listed", list(_changes(comparison))),
        )
        if lines
    )


def _changes(comparison: Comparison) -> Iterator[str]:
    for entry, outcome in comparison.otherwise:
        yield f"  {entry.test}\n      was: {entry.failure}\n      is:  {outcome.line}"


def progress(outcomes: Iterable[Outcome], file: str) -> str:
    """Return one line for a file that has been run."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    return f"{file}: " + (", ".join(f"{count} {kind.value}" for kind, count in sorted(kinds.items())) or "no tests")
