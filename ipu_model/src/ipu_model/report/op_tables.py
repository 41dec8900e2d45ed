"""HTML tables of ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ipu_model.profiling.data import OpProfile, Profile
from ipu_model.report.breakdown import Group, by_family, by_scope, cycles_per_call, fallback_share, ops_by_cost
from ipu_model.report.markup import Cell, Number, beside, folded, paragraph, table
from ipu_model.report.quantities import counted, percent, whole

_MOST_SHOWN = 20
_MOST_FOLDED = 800
_MOST_GROUPS = 15
_HEAD = (
    "op", "part of the model", "phase", "IPU", "kind", "cycles a call", "share", "runs", "cycles once",
    "OnTileExecute", "DoExchange", "InternalSync", "temporary bytes", "plan",
)  # fmt: skip


def tables(profile: Profile) -> Iterator[str]:
    """Yield the ops by part of the model and by kind, the most expensive ones, and all of them folded."""
    if not profile.ops:
        yield paragraph("No op costs anything.")
        return
    yield beside(
        _groups("part of the model", by_scope(profile), "Cycles of all IPUs by part of the model, modelled"),
        _groups("kind of op", by_family(profile), "Cycles of all IPUs by kind of op, modelled"),
    )
    yield _fallbacks(profile)
    ops = ops_by_cost(profile)
    every = sum(map(cycles_per_call, ops))
    yield _ops(
        ops[:_MOST_SHOWN], every, f"The {min(_MOST_SHOWN, len(ops))} most expensive of {len(ops):,} ops, modelled"
    )
    if len(ops) > _MOST_SHOWN:
        kept = ops[:_MOST_FOLDED]
        what = "All ops" if len(kept) == len(ops) else f"The {len(kept):,} most expensive ops (profile.json has all)"
        yield folded(f"{what}: {counted(len(kept), 'row')}", _ops(kept, every, f"{what}, modelled"))


def _groups(name: str, groups: Sequence[Group], caption: str) -> str:
    rows: list[list[Cell]] = [
        [group.name, Number(whole(group.cycles), group.cycles), Number(percent(group.share), group.share),
         Number(whole(group.ops), group.ops)]
        for group in groups[:_MOST_GROUPS]
    ]  # fmt: skip
    rest = groups[_MOST_GROUPS:]
    if rest:
        cycles, share, ops = sum(g.cycles for g in rest), sum(g.share for g in rest), sum(g.ops for g in rest)
        rows.append([f"{len(rest)} more", Number(whole(cycles), cycles), Number(percent(share), share),
                     Number(whole(ops), ops)])  # fmt: skip
    return table((name, "cycles a call", "share", "ops"), rows, caption, sortable=True)


def _fallbacks(profile: Profile) -> str:
    if not profile.fallbacks:
        return paragraph("Every op has a formula of its own.")
    targets = ", ".join(sorted({op.target for op in profile.fallbacks}))
    count, share = len(profile.fallbacks), percent(fallback_share(profile))
    return paragraph(
        f"Ops without a formula of their own: {count:,}, with {share} of all cycles ({targets}). They are costed as "
        "code that reads all inputs and writes all outputs.",
        "note",
    )


def _ops(ops: Iterable[OpProfile], every: float, caption: str) -> str:
    return table(_HEAD, [_row(op, every) for op in ops], caption, sortable=True)


def _row(op: OpProfile, every: float) -> list[Cell]:
    cycles = cycles_per_call(op)
    share = cycles / every if every else 0.0
    numbers = (op.executions, op.cycles, op.on_tile_execute, op.do_exchange, op.internal_sync, op.temporary_bytes)
    kind = f"{op.family} (no formula)" if op.is_fallback else op.family
    return [
        f"{op.node}: {op.part}" if op.part else op.node, op.scope, op.phase, Number(str(op.ipu), op.ipu), kind,
        Number(whole(cycles), cycles), Number(percent(share), share), *(Number(whole(n), n) for n in numbers), op.plan,
    ]  # fmt: skip
